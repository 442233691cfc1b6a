"""A tenant that attacks the mesh it may use: ``python -m tests.attack.attacker SECONDS TURN ROW… < addresses``.

Each attack is a row of the review that found it; all run at once, each from one worker by gRPC and one through the
gateway, as REST, again and again until the time is over. The environment has the tenant's key. The process yields to others, as an attacker has
a machine of its own; at the end it prints what became of its calls as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import count
from typing import Any, Final

import grpc
import httpx
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass

from evenmesh import Addresses
from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator_pb
from evenmesh.retriever.v1 import collection_service_pb2 as collection_pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.channel import connect
from evenmesh.wire.credentials import CREDENTIAL_KEY
from evenmesh.wire.errors import from_rpc_error
from evenmesh.wire.security import ChannelSecurity
from tests.support import document_files
from tests.support.methods import METHODS
from tests.support.processors import leave_to_others

TRANSPORTS: Final = ("grpc", "http")
"""Ways into the mesh; each attack has one worker at each."""
SECRETS: Final = 64
"""Secrets of each turn, of which the other tenant sends one, for the attacker to guess which."""

INTERNAL: Final = 500
"""Status of a fault of the mesh."""
_MIB: Final = 2**20
_WAIT_S: Final = 30.0
_PAUSE_S: Final = 0.05
_FIRST_S: Final = 120.0
"""How long after its time an attack on a busy machine waits for the first of each kind. Seconds."""
_TEN_YEARS_S: Final = 10 * 365 * 86_400.0
_transport: Final = ContextVar("transport", default=TRANSPORTS[0])
_SERVICES: Final = {
    "orchestrator": "evenmesh.orchestrator.v1.OrchestratorService",
    "retriever": "evenmesh.retriever.v1.RetrieverService",
    "generator": "evenmesh.generator.v1.GeneratorService",
    "evaluator": "evenmesh.evaluator.v1.EvaluatorService",
}


class Attacker:
    """Calls of the tenant, and what became of them.

    Args:
        channels: by service.
        web: a client of the gateway.
        turn: number of this turn: which secret the other tenant has sent.

    Attributes:
        channels: by service.
        metadata: what every call shows.
        outcomes: calls by attack and status.
        guessed: secrets of the other tenant that the mesh gave away.
    """

    def __init__(self, channels: Mapping[str, grpc.aio.Channel], web: httpx.AsyncClient, turn: int) -> None:
        self.channels = channels
        self._web = web
        self._numbers = count()
        self._turn = turn
        # The right one first; each once, because the attacker's own guesses are kept for the attacker.
        self._guesses = iter((turn, *(one for one in range(SECRETS) if one != turn)))
        # Not by the channel: what adds it there complains of calls that end in the middle.
        self.metadata = ((CREDENTIAL_KEY, f"Bearer {os.environ['EVENMESH_API_KEY']}"),)
        self.outcomes: Counter[str] = Counter()
        self.guessed: list[str] = []

    def began(self, rows: Collection[int]) -> bool:
        """Return whether each of these attacks has begun by HTTP, the slower way."""
        return all(f"row {row}, HTTP: begun" in self.outcomes for row in rows)

    def name(self) -> str:
        """Return a name that is new in this turn."""
        return f"m{os.getpid()}-{next(self._numbers)}"

    async def call(
        self,
        row: str,
        service: str,
        method: str,
        *requests: bytes,
        timeout: float = _WAIT_S,
        leave_after: float | None = None,
        gzip: bool = False,
    ) -> bytes | None:
        """Make a call with these requests, leave it after a while if asked to, and return its last reply.

        A method is ``Service/Method`` where its service is not the main one of its process.
        """
        path = f"/{_SERVICES[service]}/{method}" if "/" not in method else f"/evenmesh.{service}.v1.{method}"
        if _transport.get() == "http":
            return await self._call_http(row, path, requests, timeout, leave_after, gzip=gzip)
        compression = grpc.Compression.Gzip if gzip else None
        self.outcomes[f"row {row}: begun"] += 1  # a call may last longer than the attack
        start: Any = self.channels[service].stream_stream(path)
        call = start(iter(requests), timeout=timeout, compression=compression, metadata=self.metadata)
        last, outcome = None, "OK"
        try:
            async with asyncio.timeout(min(leave_after or timeout, _WAIT_S)):
                async for reply in call:
                    last = reply
        except TimeoutError:
            outcome = "left"
        except grpc.RpcError as error:
            failed = from_rpc_error(error)
            outcome = f"{failed.code.name} {failed.reason}"
            if failed.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
                outcome += f": {failed.message}"
        finally:
            call.cancel()
        self.outcomes[f"row {row}: {outcome}"] += 1
        return last

    async def _call_http(
        self,
        row: str,
        path: str,
        requests: tuple[bytes, ...],
        timeout: float,
        leave_after: float | None,
        *,
        gzip: bool,
    ) -> bytes | None:
        row = f"{row}, HTTP"
        headers = {
            "authorization": dict(self.metadata)[CREDENTIAL_KEY],
            "content-type": "application/x-ndjson" if METHODS[path].client_streaming else "application/json",
            "x-request-timeout": str(timeout),
            **({"content-encoding": "gzip"} if gzip else {}),
        }
        # A compressed body is refused unread, whatever it holds.
        body = zlib.compress(requests[0]) if gzip else as_json(path, requests)
        self.outcomes[f"row {row}: begun"] += 1
        last, outcome = b"", "left"
        with contextlib.suppress(TimeoutError):
            try:
                async with (
                    asyncio.timeout(min(leave_after or timeout, _WAIT_S)),
                    self._web.stream("POST", f"/v1{path}", content=body, headers=headers) as reply,
                ):
                    async for line in reply.aiter_lines():
                        said = line.removeprefix("data: ").encode()
                        last = said if said.startswith(b"{") and said != b"{}" else last
                    outcome = f"{'INTERNAL ' if reply.status_code == INTERNAL else ''}{reply.status_code}"
            except httpx.TransportError as error:
                outcome = type(error).__name__
        problem = json.loads(last or b"{}")
        if "reason" in problem and "status" in problem:  # of the reply, or of the last event
            fault = "INTERNAL " if problem["status"] == INTERNAL else ""
            last, outcome = b"", f"{fault}{problem['status']} {problem['reason']}"
        self.outcomes[f"row {row}: {outcome}"] += 1
        if not last:
            return None
        reply_class = GetMessageClass(METHODS[path].output_type)
        return ParseDict(problem, reply_class()).SerializeToString()

    async def upload(
        self,
        row: str,
        files: Sequence[tuple[str, bytes]] = (),
        *,
        content: Callable[[], AsyncIterator[bytes]] | None = None,
        leave_after: float = _WAIT_S,
        **options: str,
    ) -> None:
        """Upload documents by name, or these pieces of a form, and leave after a while.

        Uploads come by HTTP alone.
        """
        row = f"{row}, HTTP"
        headers = {"authorization": dict(self.metadata)[CREDENTIAL_KEY]}
        if content is not None:
            headers["content-type"] = "multipart/form-data; boundary=b"
        form = [("file", one) for one in files]
        body = {"content": content()} if content is not None else {"files": form}
        self.outcomes[f"row {row}: begun"] += 1
        outcome = "left"
        with contextlib.suppress(TimeoutError):
            try:
                async with asyncio.timeout(min(leave_after, _WAIT_S)):
                    reply = await self._web.post(
                        "/v1/collections/uploads/documents", params=options, headers=headers, **body
                    )
                fault = "INTERNAL " if reply.status_code == INTERNAL else ""
                outcome = f"{fault}{reply.status_code} {reply.json().get('reason', '')}".strip()
            except httpx.TransportError as error:
                outcome = type(error).__name__
        self.outcomes[f"row {row}: {outcome}"] += 1

    def guess(self) -> str | None:
        """Return the next secret to try; None when all have been."""
        number = next(self._guesses, None)
        return None if number is None else secret(self._turn, number)


@lru_cache(maxsize=64)
def as_json(path: str, requests: tuple[bytes, ...]) -> bytes:
    """Return the body of a call through the gateway."""
    request_class = GetMessageClass(METHODS[path].input_type)
    made = (MessageToDict(request_class.FromString(one)) for one in requests)
    return "\n".join(json.dumps(one) for one in made).encode()


def words(number_of_bytes: int, seed: int = 0) -> str:
    """Return a text of many different words."""
    return " ".join(f"w{seed}x{n}" for n in range(number_of_bytes // 7))[:number_of_bytes]


@cache
def large_passages(items: int, each: int) -> tuple[common_pb2.Passage, ...]:
    """Return passages that fill a request."""
    return tuple(common_pb2.Passage(id=f"p{n}", text=words(each, n)) for n in range(items))


@cache
def utility(items: int, each: int, metric: str) -> bytes:
    """Return a request to compare every answer with every reference."""
    return evaluator_pb.EvaluateUtilityRequest(
        answers=[words(each, n) for n in range(items)],
        references=[words(each, n + items) for n in range(items)],
        metric=evaluator_pb.UtilityMetric.Value(f"UTILITY_METRIC_{metric}"),
    ).SerializeToString()


async def quadratic_scoring(it: Attacker) -> None:
    """Row 2: score long answers against long references, and leave."""
    await it.call("2", "evaluator", "EvaluateUtility", utility(3, 60_000, "ROUGE_L"))
    await it.call("2", "evaluator", "EvaluateUtility", utility(1, 16_000, "ROUGE_L"), leave_after=1.0)
    await it.call("2", "evaluator", "EvaluateUtility", utility(1000, 1000, "TOKEN_F1"))
    await it.call("2", "evaluator", "EvaluateUtility", utility(100, 4000, "ROUGE_L"))


@cache
def labelled() -> bytes:
    """Return an ask whose observation is expensive to score: with as many references as an ask may have."""
    return orchestrator_pb.AskRequest(
        question="Who rows?",
        candidates=retriever_pb.InlineCandidates(passages=large_passages(2, 100)),
        reranker="none",
        run_id="killer",
        labels=evaluator_pb.Labels(
            references=[words(8000, n) for n in range(32)],
            metric=evaluator_pb.UTILITY_METRIC_ROUGE_L,
        ),
    ).SerializeToString()


async def deadly_observation(it: Attacker) -> None:
    """Row 3: have the evaluator score an observation with long labels."""
    await it.call("3", "orchestrator", "Ask", labelled())


@cache
def wide(number: int) -> bytes:
    """Return an ask whose observation is large: as much as the retriever admits of a query."""
    return orchestrator_pb.AskRequest(
        question=f"Who rows {number}?",
        candidates=retriever_pb.InlineCandidates(passages=large_passages(370, 7000)),
        retriever="bm25",
        depth=370,
        k=1,
        reranker="none",
        run_id="filler",
    ).SerializeToString()


async def full_outbox(it: Attacker) -> None:
    """Row 4: fill the outbox with large observations."""
    await it.call("4", "orchestrator", "Ask", wide(0))


async def kept_conversations(it: Attacker) -> None:
    """Row 5: begin conversations with large requests, and leave them."""
    request = orchestrator_pb.ConverseRequest(ask=orchestrator_pb.AskRequest.FromString(wide(1)))
    await it.call("5", "orchestrator", "Converse", request.SerializeToString())


def batch(name: str) -> bytes:
    """Return as many answers as one call may ask for, all to other questions."""
    passages = large_passages(4, 1000)
    decoding = generator_pb.Decoding(max_new_tokens=32)
    requests = [
        generator_pb.GenerateRequest(question=f"Who is {name} {n}?", passages=passages, decoding=decoding)
        for n in range(9)
    ]
    return generator_pb.GenerateBatchRequest(requests=requests).SerializeToString()


async def whole_generator(it: Attacker) -> None:
    """Row 6: ask for more answers than a tenant may have rows, in calls with ten years of time."""
    calls = (
        it.call("6", "generator", "GenerateBatch", batch(it.name()), timeout=_TEN_YEARS_S) for _ in range(3)
    )
    for reply in await asyncio.gather(*calls):
        if reply is not None:
            results = generator_pb.GenerateBatchResponse.FromString(reply).results
            it.outcomes.update(f"row 6, items: {one.error.reason or 'OK'}" for one in results)


@cache
def compared(values: int) -> bytes:
    """Return a comparison with the most resamples."""
    scores = [float(n % 7) for n in range(values)]
    return evaluator_pb.CompareSystemsRequest(
        first=scores, second=scores[::-1], bootstrap=evaluator_pb.Bootstrap(num_resamples=100_000)
    ).SerializeToString()


@cache
def dense() -> bytes:
    """Return a search that encodes megabytes."""
    return retriever_pb.RetrieveRequest(
        query="who",
        candidates=retriever_pb.InlineCandidates(passages=large_passages(45, 8000)),
        retriever="dense",
    ).SerializeToString()


async def long_calls(it: Attacker) -> None:
    """Row 7: hold threads with long computations, and leave what others wait for."""
    await it.call("7", "evaluator", "CompareSystems", compared(100_000), timeout=_TEN_YEARS_S)
    await it.call("7", "evaluator", "CompareSystems", compared(2000), timeout=_TEN_YEARS_S)
    await it.call("7", "retriever", "Retrieve", dense(), leave_after=1.0)


@cache
def compressible() -> bytes:
    """Return a message of passages without anything, small on the wire."""
    return b"\x12\x00" * (4 * _MIB)


async def silent_ingests(it: Attacker) -> None:
    """Row 8: hold streams of ingest open in silence, and send what is large only when decoded."""
    ingest = "CollectionService/Ingest"
    await it.call("8", "retriever", ingest, compressible(), gzip=True)
    path = f"/evenmesh.retriever.v1.{ingest}"
    method: Any = it.channels["retriever"].stream_unary(path)
    held = [method(timeout=_WAIT_S, metadata=it.metadata) for _ in range(16)]
    first = collection_pb.IngestRequest(
        collection="held", create_if_missing=True, passages=large_passages(100, 7000)
    ).SerializeToString()
    for stream in held:
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await stream.write(first)
    await asyncio.sleep(2.0)
    for stream in held:
        stream.cancel()
    it.outcomes["row 8: silent"] += len(held)


def secret(turn: int, number: int) -> str:
    """Return one of the passages that the other tenant may have sent in a turn."""
    return f"The vault of house {number} in street {turn} opens with the word sesame."


def asked_about(text: str) -> bytes:
    """Return a request about one secret."""
    passage = common_pb2.Passage(id="secret", text=text)
    return generator_pb.GenerateRequest(
        question="What opens it?", passages=[passage], decoding=generator_pb.Decoding(max_new_tokens=4)
    ).SerializeToString()


def reused(reply: bytes | None) -> int:
    """Return how many tokens the generator had kept."""
    if reply is None:
        return 0
    return generator_pb.GenerateResponse.FromString(reply).answer.cost.reused_tokens


async def guesses(it: Attacker) -> None:
    """Row 9: find out what the other tenant has sent by what is reused."""
    text = it.guess()
    if text is None:
        await asyncio.sleep(1.0)
        return
    if reused(await it.call("9", "generator", "Generate", asked_about(text))):
        it.guessed.append(text)


async def many_collections(it: Attacker) -> None:
    """Row 10: make collections without end, and open them all."""
    request = collection_pb.IngestRequest(
        collection=it.name(), create_if_missing=True, passages=large_passages(1, 100), last=True
    )
    await it.call("10", "retriever", "CollectionService/Ingest", request.SerializeToString())
    search = retriever_pb.RetrieveRequest(query="w0x1", collection=request.collection, retriever="bm25")
    await it.call("10", "retriever", "Retrieve", search.SerializeToString())


@cache
def bombs() -> tuple[tuple[str, bytes], ...]:
    """Return files that are small, or few, and become many or large."""
    zeros = b"\0" * (96 * _MIB)
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))
    sheet = f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "ha">{laughs}]><x>&l11;</x>'
    inner = document_files.zipped({"zeros.txt": zeros})
    return (
        ("bomb.zip", document_files.zipped({f"{n}.zip": inner for n in range(50)})),
        ("bomb.docx", document_files.zipped({"word/document.xml": zeros})),
        ("laughs.xlsx", document_files.zipped({"[Content_Types].xml": sheet, "xl/workbook.xml": sheet})),
        ("deep.html", b"<div>" * 300_000),
        ("broken.pdf", document_files.pdf([[(11, "x")]])[:300]),
        ("locked.pdf", document_files.pdf([[]], encrypted=True)),
    )


@cache
def crowd(number: int) -> tuple[tuple[str, bytes], ...]:
    """Return tiny files, of which each is its own provider's."""
    return tuple((f"p{n}/{n}.md", b"Who rows?") for n in range(number))


async def half_a_form() -> AsyncIterator[bytes]:
    """Yield the first half of a form, a little at a time, and never the second."""
    yield b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.md"\r\n\r\n'
    while True:
        yield b"x" * 100
        await asyncio.sleep(0.5)


async def hostile_uploads(it: Attacker) -> None:
    """Row 11: upload what unpacks without end, what is searched without end, and what never comes whole."""
    await asyncio.gather(
        it.upload("11", bombs()),
        it.upload("11", [("a" * 60 + ".md", b"Who rows?")], provider="pattern:^(a+)+$", leave_after=5.0),
        it.upload("11", content=half_a_form, leave_after=5.0),
        it.upload("11", crowd(1000)),
        it.upload("11", crowd(1001)),
        it.upload(
            "11", [("x" * 100_000 + ".md", b"Who rows?"), *((f"{'y' * 900}{n}.md", b"x") for n in range(200))]
        ),
        it.upload(
            "11", [("../../out.md", b"x"), ("/etc/passwd.md", b"x"), (f"{it.name()}.md", b"Who rows?")]
        ),
    )


ATTACKS: Final[Mapping[int, Callable[[Attacker], Awaitable[None]]]] = {
    2: quadratic_scoring,
    3: deadly_observation,
    4: full_outbox,
    5: kept_conversations,
    6: whole_generator,
    7: long_calls,
    8: silent_ingests,
    9: guesses,
    10: many_collections,
    11: hostile_uploads,
}
ROWS: Final = tuple(ATTACKS)


async def attack(
    addresses: Mapping[str, str], gateway: str, seconds: float, turn: int, rows: Collection[int]
) -> dict[str, Any]:
    """Make these attacks for so long, and each at least once, and return what became of them."""
    began = time.process_time()
    async with AsyncExitStack() as stack:
        channels = {
            name: await stack.enter_async_context(
                connect(addresses[name], service=service, retry=False, security=ChannelSecurity())
            )
            for name, service in _SERVICES.items()
        }
        unlimited = httpx.Limits(max_connections=None)
        web = httpx.AsyncClient(base_url=f"http://{gateway}", timeout=_WAIT_S, limits=unlimited)
        it = Attacker(channels, await stack.enter_async_context(web), turn)

        ends = time.monotonic() + seconds

        def over() -> bool:
            late_s = time.monotonic() - ends
            return late_s >= (0.0 if it.began(rows) else _FIRST_S)

        async def worker(row: int, transport: str) -> None:
            _transport.set(transport)
            # By the clock, too: a call of grpc.aio that ends as it is cancelled swallows the cancellation.
            while not over():
                await ATTACKS[row](it)
                await asyncio.sleep(_PAUSE_S)

        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(worker(row, transport)) for row in rows for transport in TRANSPORTS]
            while not over():
                await asyncio.sleep(_PAUSE_S)
            for one in workers:
                one.cancel()
    cpu_s = time.process_time() - began
    return {"outcomes": dict(sorted(it.outcomes.items())), "guessed": it.guessed, "cpu_s": cpu_s}


def _warm() -> Iterator[bytes]:
    """Make the large requests before the time begins."""
    yield from (labelled(), wide(0), wide(1), compared(100_000), compared(2000), dense())
    yield from (utility(1000, 1000, "TOKEN_F1"), utility(100, 4000, "ROUGE_L"), compressible())
    yield from (data for _, data in bombs())


def main() -> int:
    """Attack the mesh whose addresses come in standard input."""
    leave_to_others()
    logging.getLogger("asyncio").setLevel(
        logging.CRITICAL
    )  # calls are left in the middle: that is the attack
    seconds, turn, rows = float(sys.argv[1]), int(sys.argv[2]), tuple(map(int, sys.argv[3:]))
    given = json.loads(sys.stdin.read())
    gateway = given.pop("gateway")
    addresses = dict(Addresses(**given).items())
    for _ in _warm():
        pass
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdout.write(json.dumps(asyncio.run(attack(addresses, gateway, seconds, turn, rows))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
