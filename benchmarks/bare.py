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

import grpc
import uvloop

from benchmarks import shapes
from ragmesh.evaluator.v1 import evaluator_service_pb2 as ev
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as ev_grpc
from ragmesh.generator.v1 import generator_service_pb2 as gen
from ragmesh.generator.v1 import generator_service_pb2_grpc as gen_grpc
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orch
from ragmesh.reranker.v1 import reranker_service_pb2 as rer
from ragmesh.reranker.v1 import reranker_service_pb2_grpc as rer_grpc
from ragmesh.retriever.v1 import retriever_service_pb2 as ret
from ragmesh.retriever.v1 import retriever_service_pb2_grpc as ret_grpc


class Retriever(ret_grpc.RetrieverServiceServicer):
    """Answers every query with the same pool."""

    reply = shapes.retrieved()

    async def Retrieve(self, request: ret.RetrieveRequest, context: object) -> ret.RetrieveResponse:
        return self.reply

    async def ListRetrievers(
        self, request: ret.ListRetrieversRequest, context: object
    ) -> ret.ListRetrieversResponse:
        return ret.ListRetrieversResponse()


class Reranker(rer_grpc.RerankerServiceServicer):
    """Scores every passage by its place."""

    async def Rerank(self, request: rer.RerankRequest, context: object) -> rer.RerankResponse:
        return shapes.reranked(len(request.passages))


class Generator(gen_grpc.GeneratorServiceServicer):
    """Streams the same answer, one delta a token."""

    async def Generate(
        self, request: gen.GenerateRequest, context: object
    ) -> AsyncIterator[gen.GenerateResponse]:
        for _ in range(shapes.TOKENS):
            yield gen.GenerateResponse(delta="token ")
        yield gen.GenerateResponse(answer=shapes.answer())

    async def GenerateBatch(
        self, request: gen.GenerateBatchRequest, context: object
    ) -> gen.GenerateBatchResponse:
        return gen.GenerateBatchResponse(
            results=[gen.GenerateBatchResult(answer=shapes.answer()) for _ in request.requests]
        )

    async def ScoreRelevance(
        self, request: gen.ScoreRelevanceRequest, context: object
    ) -> gen.ScoreRelevanceResponse:
        return gen.ScoreRelevanceResponse(probabilities=[0.5] * len(request.passages))

    async def ListModels(self, request: gen.ListModelsRequest, context: object) -> gen.ListModelsResponse:
        return gen.ListModelsResponse()


class Evaluator:
    """Acknowledges every observation at once."""

    async def observe(
        self, requests: AsyncIterator[ev.ObserveRequest], context: object
    ) -> AsyncIterator[ev.ObserveResponse]:
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
        yield orch.AskResponse(ranked=orch.Ranked(contexts={"depth": len(order), "indices": order}))
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
                    shown={"depth": len(order), "indices": order},
                )
            )
        )
        await observe.done_writing()
        async for _ in observe:
            pass
        yield orch.AskResponse(done=orch.Done(ask_id="x"))


def _handlers(role: str, targets: list[str], server: grpc.aio.Server) -> None:
    if role == "retriever":
        ret_grpc.add_RetrieverServiceServicer_to_server(Retriever(), server)
    elif role == "reranker":
        rer_grpc.add_RerankerServiceServicer_to_server(Reranker(), server)
    elif role == "generator":
        gen_grpc.add_GeneratorServiceServicer_to_server(Generator(), server)
    elif role == "evaluator":
        handler = grpc.stream_stream_rpc_method_handler(
            Evaluator().observe, ev.ObserveRequest.FromString, ev.ObserveResponse.SerializeToString
        )
        server.add_registered_method_handlers("ragmesh.evaluator.v1.EvaluatorService", {"Observe": handler})
    else:
        handler = grpc.unary_stream_rpc_method_handler(
            Orchestrator(targets).ask, orch.AskRequest.FromString, orch.AskResponse.SerializeToString
        )
        server.add_registered_method_handlers("ragmesh.orchestrator.v1.OrchestratorService", {"Ask": handler})


async def _serve(role: str, targets: list[str]) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    _handlers(role, targets, server)
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
