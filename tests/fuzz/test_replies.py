"""Servers that say what ours never would: the SDK raises its own error, and the orchestrator answers typed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from evenmesh import Addresses, Agent, Client, Feedback, MeshError, Passage
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_orchestrator.__main__ import Orchestrator
from evenmesh_orchestrator.expressions.sources import SourceDefinition
from evenmesh_orchestrator.settings import OrchestratorSettings
from tests.fuzz import recipes, rpcs
from tests.fuzz.mesh import RPCS
from tests.fuzz.replies import OddHandler

ROUNDS = int(os.environ.get("EVENMESH_FUZZ_REPLIES", "8"))

pytestmark = pytest.mark.timeout(120 + 10 * ROUNDS)


@contextmanager
def odd_server(seed: str) -> Iterator[str]:
    """Its address; it runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    ready: list[str] = []
    started = threading.Event()
    ending = asyncio.Event()

    async def serve() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((OddHandler(seed),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        ready.append(f"127.0.0.1:{port}")
        started.set()
        await ending.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    started.wait(30)
    try:
        yield ready[0]
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(30)
        loop.close()


def _calls(client: Client) -> list[Callable[[], Any]]:
    agent = Agent("qa", "t5")
    passages = [Passage("p1", "Water flows.")]
    return [
        lambda: client.answer("What?"),
        lambda: client.answer("What?", passages=passages),
        lambda: list(client.ask("What?")),
        lambda: client.retrieve("What?", collection="demo"),
        client.sources,
        lambda: list(client.audit("What?", useful=["p1"])),
        lambda: client.ingest(passages, "demo"),
        lambda: client.create_collection("demo"),
        lambda: client.collection("demo"),
        client.collections,
        lambda: list(client.passages("demo")),
        lambda: client.delete_collection("demo"),
        client.runs,
        lambda: client.report("run"),
        client.configurations,
        lambda: list(client.measurements("run")),
        lambda: client.record_feedback([Feedback("q", "p1", 0.5, agent)]),
        lambda: list(client.export_feedback()),
        lambda: client.register_agent(agent),
        client.agents,
        client.models,
        lambda: client.promote_model("v"),
        client.rollback_model,
        client.training_status,
    ]


def test_the_sdk_raises_its_own_error_or_takes_the_reply() -> None:
    raised, taken = 0, 0
    for number in range(ROUNDS):
        with odd_server(f"sdk{number}") as address, Client(Addresses(*[address] * 5), timeout=10) as client:
            for place, call in enumerate(_calls(client)):
                try:
                    call()
                    taken += 1
                except MeshError:
                    raised += 1
                except Exception as error:
                    raise AssertionError(f"round {number}, call {place}: {error!r}") from error
    assert raised > ROUNDS
    assert taken > ROUNDS


async def test_the_orchestrator_names_the_service_that_said_it(tmp_path: Path) -> None:
    asking = [rpc for rpc in RPCS if rpc.server == "orchestrator"]
    stacks: list[str] = []
    for number in range(ROUNDS):
        with odd_server(f"upstream{number}") as address:
            settings = OrchestratorSettings(
                home=tmp_path / str(number),
                port=0,
                default_deadline_s=10,
                sources={
                    "Lexical": SourceDefinition(collection="demo"),
                    "Other": SourceDefinition(collection="demo"),
                },
                **{
                    f"{name}_target": f"dns:///{address}"
                    for name in ("retriever", "reranker", "generator", "evaluator")
                },
            )
            service = Orchestrator(settings, Telemetry.disabled())
            with rpcs.Incidents() as incidents:
                server = MeshServer("orchestrator", settings, service, telemetry=Telemetry.disabled())
                async with server, grpc.aio.insecure_channel(server.address) as channel:
                    for rpc in asking:
                        for attempt in range(4):
                            sent = recipes.requests(rpc.name, Random(f"{number}{attempt}"))
                            await _asked(channel, rpc, tuple(one.SerializeToString() for one in sent))
            stacks.extend(incidents.stacks)
    ends = {"\n".join(one.strip().splitlines()[-5:]) for one in stacks}
    assert not ends, "\n---\n".join(sorted(ends))


async def _asked(channel: grpc.aio.Channel, rpc: Any, sent: rpcs.Case) -> None:
    many = (channel.stream_stream if rpc.takes_many else channel.unary_stream)(rpc.path)
    call = many(iter(sent) if rpc.takes_many else sent[0], timeout=15)
    with contextlib.suppress(grpc.aio.AioRpcError):  # whose reason is looked at where it is made
        async for _ in call:
            pass
