"""The calls of a load test: ask, rerank, generate, and rerank then generate."""

import time
from collections.abc import Sequence
from typing import Any, Final, Protocol, Self

import grpc

from evenmesh.addresses import Addresses
from evenmesh.codec import messages as codec
from evenmesh.codec.mapping import decode
from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb2
from evenmesh.generator.v1 import generator_service_pb2_grpc as generator_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb2
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as orchestrator_grpc
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb2
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as reranker_grpc
from evenmesh.types.events import Degraded
from evenmesh.types.request import AskOptions, Decoding, ask_request, passage_message
from evenmesh.wire.channel import connect
from evenmesh_studies.load.calls.call import OK, Outcome
from evenmesh_studies.load.calls.inputs import Item
from evenmesh_studies.load.settings import CallSettings

_SERVICES: Final = {
    "orchestrator": orchestrator_pb2.DESCRIPTOR.services_by_name["OrchestratorService"].full_name,
    "reranker": reranker_pb2.DESCRIPTOR.services_by_name["RerankerService"].full_name,
    "generator": generator_pb2.DESCRIPTOR.services_by_name["GeneratorService"].full_name,
}


class Operation(Protocol):
    """Makes calls. Raises nothing but on cancellation."""

    async def __call__(self, item: Item, number: int) -> Outcome:
        """Make one call with a question; append ``number`` to it where calls must be distinct."""
        ...


class Operations:
    """The calls of one client. An async context manager that holds the connections.

    Calls are not retried: a retry would hide an error and lengthen a latency.

    Args:
        addresses: where the services are.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        self._channels = {
            name: connect(getattr(self._addresses, name), service=service, retry=False)
            for name, service in _SERVICES.items()
        }
        return self

    async def __aexit__(self, *exc: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    def make(self, settings: CallSettings) -> Operation:
        """Return the operation that settings name."""

        def arguments(service: str, stub: Any) -> tuple[Any, CallSettings, str]:
            return stub(self._channels[service]), settings, getattr(self._addresses, service)

        if settings.operation == "ask":
            return _Ask(*arguments("orchestrator", orchestrator_grpc.OrchestratorServiceStub))
        rerank = _Rerank(*arguments("reranker", reranker_grpc.RerankerServiceStub))
        generate = _Generate(*arguments("generator", generator_grpc.GeneratorServiceStub))
        match settings.operation:
            case "rerank":
                return rerank
            case "generate":
                return generate
            case "rerank-generate":
                return _RerankGenerate(rerank, generate)


class _Caller:
    """Calls one service as settings say."""

    def __init__(self, stub: Any, settings: CallSettings, address: str) -> None:
        self._stub = stub
        self._settings = settings
        self._address = address


class _Pieces:
    """Records the times at which text arrives."""

    def __init__(self) -> None:
        self._times: list[float] = []

    def came(self) -> None:
        self._times.append(time.monotonic())

    @property
    def first_s(self) -> float:
        return self._times[0] if self._times else float("nan")

    @property
    def gaps_ms(self) -> tuple[float, ...]:
        return tuple(1e3 * (b - a) for a, b in zip(self._times, self._times[1:], strict=False))


class _Ask(_Caller):
    async def __call__(self, item: Item, number: int) -> Outcome:
        settings = self._settings
        options: AskOptions = {
            "collection": None if item.passages else settings.collection,
            "passages": item.passages[: settings.n] or None,
            "alpha": settings.alpha,
            "samples": settings.samples if settings.alpha is not None else None,
            "seed": number % 2**31,
            "k": settings.k,
            "depth": settings.n,
            "rerank_depth": min(settings.n, len(item.passages) or settings.n),
            "retriever": settings.retriever,
            "reranker": settings.reranker,
            "model": settings.model,
            "run_id": settings.run_id,
            "query_id": item.query_id,
            "observe": settings.observe,
            "references": item.references or None,
            "useful": item.useful,
        }
        if settings.max_new_tokens is not None:
            options["decoding"] = Decoding(max_new_tokens=settings.max_new_tokens)
        request = ask_request(_distinct(item.question, number, settings), options)
        pieces = _Pieces()
        code, stages, degraded = "INTERNAL NO_DONE", {}, []
        quantities: dict[str, float] = {}
        call = self._stub.Ask(request, timeout=settings.timeout_s)
        try:
            async for message in call:
                match message.WhichOneof("event"):
                    case "delta":
                        pieces.came()
                    case "answer":
                        _count(quantities, message.answer.answer)
                    case "failed":
                        # To its caller an ask fails if one of its contexts has no answer.
                        code = f"{message.failed.error.code} {message.failed.error.reason}"
                    case "report":
                        report = message.report
                        quantities["ee_d_norm"] = report.ee_d_norm
                        if report.HasField("expected_utility"):
                            quantities["expected_utility"] = report.expected_utility
                    case "degraded":
                        degraded.append(decode(Degraded, message.degraded).stage)
                    case "done":
                        stages = dict(codec.done(message.done).stage_ms)
                        quantities["server_ms"] = message.done.total_ms
                        code = OK if code == "INTERNAL NO_DONE" else code
        except grpc.RpcError as exc:
            code = _code(exc, "orchestrator", self._address)
        finally:
            call.cancel()
        return Outcome(code, pieces.first_s, pieces.gaps_ms, stages, quantities, tuple(degraded))


class _Rerank(_Caller):
    def __init__(self, stub: Any, settings: CallSettings, address: str) -> None:
        super().__init__(stub, settings, address)
        self._made: dict[str, reranker_pb2.RerankRequest] = {}

    async def __call__(self, item: Item, number: int) -> Outcome:
        return (await self.ordered(item, number))[0]

    async def ordered(self, item: Item, number: int) -> tuple[Outcome, Sequence[int]]:
        """Return the outcome and the places of the best passages, best first."""
        settings = self._settings
        known = self._made.get(item.query_id)
        if known is None:
            known = reranker_pb2.RerankRequest(
                passages=[passage_message(one) for one in item.passages[: settings.n]],
                top_k=min(settings.k, len(item.passages)),
                reranker=settings.reranker or "",
            )
            self._made[item.query_id] = known
        request = reranker_pb2.RerankRequest()
        request.CopyFrom(known)
        request.query = _distinct(item.question, number, settings)
        began = time.monotonic()
        try:
            reply = await self._stub.Rerank(request, timeout=settings.timeout_s)
        except grpc.RpcError as exc:
            return Outcome(_code(exc, "reranker", self._address)), ()
        taken = 1e3 * (time.monotonic() - began)
        quantities = {"pairs": float(len(request.passages))}
        return Outcome(stages={"rerank": taken}, quantities=quantities), list(reply.order)


class _Generate(_Caller):
    def __init__(self, stub: Any, settings: CallSettings, address: str) -> None:
        super().__init__(stub, settings, address)
        self._made: dict[str, Sequence[common_pb2.Passage]] = {}

    async def __call__(self, item: Item, number: int) -> Outcome:
        return await self.written(item, number, range(min(self._settings.k, len(item.passages))))

    async def written(self, item: Item, number: int, order: Sequence[int]) -> Outcome:
        """Answer from the passages at these places and return the outcome."""
        settings = self._settings
        known = self._made.get(item.query_id)
        if known is None:
            known = [passage_message(one) for one in item.passages[: settings.n]]
            self._made[item.query_id] = known
        request = generator_pb2.GenerateRequest(
            question=_distinct(item.question, number, settings),
            passages=[known[place] for place in order[: settings.k]],
            model=settings.model or "",
        )
        if settings.max_new_tokens is not None:
            request.decoding.max_new_tokens = settings.max_new_tokens
        pieces = _Pieces()
        quantities: dict[str, float] = {}
        stages: dict[str, float] = {}
        code = "INTERNAL NO_ANSWER"
        began = time.monotonic()
        call = self._stub.Generate(request, timeout=settings.timeout_s)
        try:
            async for message in call:
                if message.WhichOneof("part") == "delta":
                    pieces.came()
                    continue
                _count(quantities, message.answer)
                code = OK
        except grpc.RpcError as exc:
            code = _code(exc, "generator", self._address)
        finally:
            call.cancel()
        stages["generate"] = 1e3 * (time.monotonic() - began)
        return Outcome(code, pieces.first_s, pieces.gaps_ms, stages, quantities)


class _RerankGenerate:
    def __init__(self, rerank: _Rerank, generate: _Generate) -> None:
        self._rerank = rerank
        self._generate = generate

    async def __call__(self, item: Item, number: int) -> Outcome:
        first, order = await self._rerank.ordered(item, number)
        if first.code != OK:
            return first
        then = await self._generate.written(item, number, order)
        return Outcome(
            then.code,
            then.first_s,
            then.gaps_ms,
            {**first.stages, **then.stages},
            {**first.quantities, **then.quantities},
        )


def _distinct(question: str, number: int, settings: CallSettings) -> str:
    return f"{question} ({number})" if settings.distinct else question


def _count(quantities: dict[str, float], answer: generator_pb2.Answer) -> None:
    """Add the cost of an answer to the sum over an ask's answers."""
    cost = answer.cost
    for name, value in (
        ("answers", 1),
        ("prompt_tokens", answer.prompt_tokens),
        ("written_tokens", answer.completion_tokens),
        ("computed_tokens", cost.computed_tokens),
        ("reused_tokens", cost.reused_tokens),
        ("queue_ms", cost.queue_ms),
        ("model_ms", cost.total_ms),
        ("batch_rows", cost.batch_rows),
    ):
        quantities[name] = quantities.get(name, 0.0) + value


def _code(exc: grpc.RpcError, service: str, address: str) -> str:
    error = codec.error(exc, service=service, address=address)
    name = error.code.name
    return name if error.reason == name else f"{name} {error.reason}"
