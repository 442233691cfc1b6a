"""Judging by the generator over a real connection: tenants take turns for its calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc

from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.wire import deadline
from evenmesh.wire.credentials import TENANT_KEY
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_kit.settings import load
from evenmesh_reranker.backends.rankrag import RankRag
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.settings import RerankerSettings

_SERVICE = pb.DESCRIPTOR.services_by_name["GeneratorService"].full_name


async def test_a_tenant_leaves_others_calls_of_the_connection() -> None:
    """Beyond the calls of a connection gRPC lets all wait, first come, first served."""
    running: Counter[str] = Counter()
    changed, go = asyncio.Condition(), asyncio.Event()

    async def judge(request: Any, context: Any) -> pb.ScoreRelevanceResponse:
        tenant = dict(context.invocation_metadata())[TENANT_KEY]
        async with changed:
            running[tenant] += 1
            changed.notify_all()
        if tenant == "greedy":
            await go.wait()
        return pb.ScoreRelevanceResponse(probabilities=[0.5])

    handler: Any = grpc.unary_unary_rpc_method_handler(
        judge, response_serializer=pb.ScoreRelevanceResponse.SerializeToString
    )
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 4)])
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(_SERVICE, {"ScoreRelevance": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    calls = Admission(4, "generator calls", share=0.75)
    reranker = RankRag(f"127.0.0.1:{port}", model="", model_setting="X", max_message_bytes=2**20, calls=calls)

    async def made(tenant: str) -> None:
        callers.enter(Caller(tenant, tenant, frozenset({Role.ASK})))
        deadline.enter(deadline.Deadline.after(60))
        scores = await reranker.score("Which?", [Passage("a", "", "text")], Agent())
        assert scores.values == (0.5,)

    async with asyncio.timeout(60):
        greedy = [asyncio.create_task(made("greedy")) for _ in range(8)]
        async with changed:
            await changed.wait_for(lambda: running["greedy"] >= 3)
        await asyncio.create_task(made("modest"))
        assert running == {"greedy": 3, "modest": 1}
        go.set()
        await asyncio.gather(*greedy)
    assert calls.in_flight == 0
    await reranker.close()
    await server.stop(0)


def test_calls_to_the_generator_fit_a_connection() -> None:
    settings = load(RerankerSettings)
    assert settings.upstream_calls < settings.max_connection_streams
