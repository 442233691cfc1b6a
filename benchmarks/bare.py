"""The bare flow: the mesh's five processes and messages with nothing in between.

Each role is one process of plain ``grpc.aio`` handlers that answer with canned messages of an ask's shape:
no checks, no interceptors, no admission, no telemetry, no store. What the real mesh costs beyond this is its
overhead.

    python -m benchmarks.bare retriever                      # prints its port
    python -m benchmarks.bare orchestrator 127.0.0.1:1 ...   # the four upstreams in order
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
import uvloop

from benchmarks import shapes
from evenmesh.common.v1 import common_pb2 as common
from evenmesh.evaluator.v1 import evaluator_service_pb2 as ev
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as ev_grpc
from evenmesh.generator.v1 import generator_service_pb2 as gen
from evenmesh.generator.v1 import generator_service_pb2_grpc as gen_grpc
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as orch
from evenmesh.reranker.v1 import reranker_service_pb2 as rer
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as rer_grpc
from evenmesh.retriever.v1 import retriever_service_pb2 as ret
from evenmesh.retriever.v1 import retriever_service_pb2_grpc as ret_grpc

_FOUND: Final = shapes.retrieved()


async def _retrieve(_request: ret.RetrieveRequest, _context: object) -> ret.RetrieveResponse:
    """Answer every query with the same pool."""
    return _FOUND


async def _rerank(request: rer.RerankRequest, _context: object) -> rer.RerankResponse:
    """Score every passage by its place."""
    return shapes.reranked(len(request.passages))


async def _generate(_request: gen.GenerateRequest, _context: object) -> AsyncIterator[gen.GenerateResponse]:
    """Stream the same answer, one delta a token."""
    for _ in range(shapes.TOKENS):
        yield gen.GenerateResponse(delta="token ")
    yield gen.GenerateResponse(answer=shapes.answer())


async def _observe(
    requests: AsyncIterator[ev.ObserveRequest], _context: object
) -> AsyncIterator[ev.ObserveResponse]:
    """Acknowledge every observation at once."""
    async for request in requests:
        yield ev.ObserveResponse(ack=ev.ObserveAck(observation_id=request.observation.id))


class Orchestrator:
    """Calls the four upstreams in turn and forwards what comes."""

    def __init__(self, targets: list[str]) -> None:
        channels = [grpc.aio.insecure_channel(target) for target in targets]
        self.retriever = ret_grpc.RetrieverServiceStub(channels[0])
        self.reranker = rer_grpc.RerankerServiceStub(channels[1])
        self.generator = gen_grpc.GeneratorServiceStub(channels[2])
        self.evaluator = ev_grpc.EvaluatorServiceStub(channels[3])

    async def ask(self, request: orch.AskRequest, context: object) -> AsyncIterator[orch.AskResponse]:
        found = await self.retriever.Retrieve(
            ret.RetrieveRequest(query=request.question, collection=request.collection)
        )
        yield orch.AskResponse(
            retrieved=orch.Retrieved(passages=found.passages, scores=found.scores, retriever=found.retriever)
        )
        scored = await self.reranker.Rerank(
            rer.RerankRequest(query=request.question, passages=found.passages[: shapes.RERANKED])
        )
        order = scored.order[: shapes.SHOWN]
        yield orch.AskResponse(ranked=orch.Ranked(contexts=common.Rankings(depth=len(order), indices=order)))
        async for part in self.generator.Generate(
            gen.GenerateRequest(question=request.question, passages=[found.passages[i] for i in order])
        ):
            if part.WhichOneof("part") == "delta":
                yield orch.AskResponse(delta=orch.Delta(text=part.delta))
            else:
                yield orch.AskResponse(answer=orch.AnswerEvent(answer=part.answer, samples=[0]))
        observe = self.evaluator.Observe()
        await observe.write(
            ev.ObserveRequest(
                observation=ev.Observation(
                    id="x",
                    run_id="bench",
                    query_id="q",
                    candidates=[ev.Candidate(passage_id=p.id) for p in found.passages],
                    shown=common.Rankings(depth=len(order), indices=order),
                )
            )
        )
        await observe.done_writing()
        async for _ in observe:
            pass
        yield orch.AskResponse(done=orch.Done(ask_id="x"))


def _service(role: str, targets: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the name of a role's service, and the methods that an ask calls, of which it has one."""
    unary, replies = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    handlers: dict[str, Any] = {
        "Retrieve": unary(_retrieve, ret.RetrieveRequest.FromString, ret.RetrieveResponse.SerializeToString),
        "Rerank": unary(_rerank, rer.RerankRequest.FromString, rer.RerankResponse.SerializeToString),
        "Generate": replies(
            _generate, gen.GenerateRequest.FromString, gen.GenerateResponse.SerializeToString
        ),
        "Observe": grpc.stream_stream_rpc_method_handler(
            _observe, ev.ObserveRequest.FromString, ev.ObserveResponse.SerializeToString
        ),
    }
    if role == "orchestrator":
        ask = Orchestrator(targets).ask
        handlers["Ask"] = replies(ask, orch.AskRequest.FromString, orch.AskResponse.SerializeToString)
    return f"evenmesh.{role}.v1.{role.capitalize()}Service", handlers


async def _serve(role: str, targets: list[str]) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_registered_method_handlers(*_service(role, targets))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    await stop.wait()
    await server.stop(0.2)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    uvloop.run(_serve(sys.argv[1], sys.argv[2:]))
