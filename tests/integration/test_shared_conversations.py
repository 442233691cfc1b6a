"""Two orchestrator processes with their conversations in one PostgreSQL; either may die, and so may the database."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

import grpc
import pytest
import pytest_asyncio

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.wire.errors import MeshError, from_rpc_error
from tests.integration.test_conversations_service import (
    TARGETS,
    Stream,
    answer_of,
    failure_of,
    passages,
    report_of,
    talking,
)
from tests.integration.test_orchestrator_service import DEADLINE_S, Mesh, _mesh
from tests.support.killable import Killable
from tests.support.postgres import Postgres

pytestmark = pytest.mark.asyncio(loop_scope="module")

LEASE_S = 10
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("Which river?", {}),
    ("And there?", {"ask": {"candidates": passages("river1"), "k": 1, "reranker": "none"}}),
    ("And now?", {"ask": {"collection": "demo", "k": 2, "reranker": "none"}}),
]


@dataclass
class Shared:
    """Two orchestrators over the same services and one database."""

    a: Mesh
    b: Mesh
    postgres: Postgres


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_meshes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    """What the tests of this file share."""
    async with AsyncExitStack() as stack:
        postgres = Postgres(durable=True)
        stack.callback(postgres.end)
        await asyncio.to_thread(postgres.start)
        settings = {
            "CONVERSATIONS_URL": postgres.url.replace("+asyncpg", ""),
            "CONVERSATION_LEASE_S": str(LEASE_S),
        }
        home = tmp_path_factory.mktemp("home")
        (home / "a").mkdir()
        mesh = await stack.enter_async_context(_mesh(home / "a", **settings))
        (home / "b").mkdir()
        second = Killable("evenmesh_orchestrator", "orchestrator", home / "b", **mesh.settings)
        stack.callback(second.kill)
        await second.start()
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(second.address))
        yield Shared(mesh, replace(mesh, orchestrator=second, channel=channel), postgres)


@pytest.fixture
def shared(module_meshes: Shared) -> Shared:
    """Both with everything working, and a run of the test's own."""
    mesh = module_meshes.a
    for upstream in (mesh.retriever, mesh.reranker, mesh.generator):
        upstream.reset()
    mesh.run_id = module_meshes.b.run_id = uuid.uuid4().hex
    return module_meshes


async def error_of(stream: Stream) -> MeshError:
    """What the stream ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stream.turn()
    return from_rpc_error(caught.value)


async def begun(mesh: Mesh) -> str:
    """The id of a conversation of one turn, whose stream is over."""
    async with talking(mesh) as stream:
        first = await stream.take("Where is the Danube?", **stream.first())
        await stream.call.done_writing()
        assert await stream.call.read() is grpc.aio.EOF
    return first[0].conversation_id


async def taken(mesh: Mesh, name: str) -> list[pb.ConverseResponse]:
    """The next turn of a conversation, as soon as no other stream has it."""
    ends = time.monotonic() + DEADLINE_S
    while True:
        async with talking(mesh) as stream:
            try:
                return await stream.take("And its end?", conversation_id=name)
            except grpc.aio.AioRpcError as error:
                if from_rpc_error(error).reason != "CONVERSATION_BUSY":
                    raise
        assert time.monotonic() < ends, "the conversation of a dead orchestrator stays in use"
        await asyncio.sleep(0.1)


async def test_a_conversation_goes_on_elsewhere_and_is_measured_as_by_one(shared: Shared) -> None:
    wanted, text = [], ""
    async with talking(shared.a) as stream:
        for at, (question, more) in enumerate(QUESTIONS):
            events = await stream.take(question, **(stream.first(options=TARGETS) if at == 0 else more))
            wanted.append(report_of(events))
            text = events[-1].transcript
    name = ""
    for at, (question, more) in enumerate(QUESTIONS):
        async with talking((shared.a, shared.b)[at % 2]) as stream:
            request = stream.first(options=TARGETS) if at == 0 else more
            events = await stream.take(question, conversation_id=name, **request)
            await stream.call.done_writing()
            assert await stream.call.read() is grpc.aio.EOF
        name = events[0].conversation_id
        assert events[-1].turn == at + 1
        assert report_of(events) == wanted[at]
    assert wanted[-1].so_far.relevance > 0
    assert events[-1].transcript == text


async def test_two_at_once_cannot_have_it(shared: Shared) -> None:
    async with talking(shared.a) as stream:
        first = await stream.take("Where is the Danube?", **stream.first())
        name = first[0].conversation_id
        async with talking(shared.b) as thief:
            await thief.send("Mine?", conversation_id=name)
            refused = await error_of(thief)
        assert (refused.code, refused.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "CONVERSATION_BUSY")
        assert (await stream.take("And its end?"))[-1].turn == 2


async def test_after_kill_9_in_a_turn_the_other_goes_on_from_the_last_one_that_ended(shared: Shared) -> None:
    async with talking(shared.a) as stream:
        first = await stream.take("Where is the Danube?", **stream.first(options=TARGETS))
        shared.a.generator.letter_delay_s = 0.5
        await stream.send("Where was I?")
        while True:
            event: Any = await stream.call.read()
            if event.event.HasField("delta"):
                break
        shared.a.orchestrator.kill()
    shared.a.generator.reset()
    second = await taken(shared.b, first[0].conversation_id)
    assert second[-1].turn == 2
    assert second[0].looked_for == "And its end? Danube"
    assert second[-1].transcript.startswith(first[-1].transcript)
    assert "Where was I?" not in second[-1].transcript
    assert report_of(second).so_far.relevance == report_of(first).so_far.relevance  # the same passage again
    await shared.a.orchestrator.start()
    third = await taken(shared.a, first[0].conversation_id)
    assert third[-1].turn == 3


async def test_without_the_database_asks_go_on_and_turns_say_what_is_missing(shared: Shared) -> None:
    name = await begun(shared.b)
    async with talking(shared.b) as running:
        await running.take("And now?", conversation_id=name)
        shared.b.generator.letter_delay_s = 0.2
        await running.send("And then?")
        while True:
            event: Any = await running.call.read()
            if event.event.HasField("delta"):
                break
        await asyncio.to_thread(shared.postgres.kill)
        try:
            events = await running.turn()
            assert answer_of(events) == "river0."
            assert failure_of(events)[0] == "TURN_NOT_STORED"
            shared.b.generator.reset()
            assert failure_of(await running.take("And here?"))[0] == "STORE_UNAVAILABLE"
            async with talking(shared.b) as another:
                await another.send("Where?", **another.first())
                refused = await error_of(another)
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
            asked = await shared.b.ask(k=1, reranker="none")
            assert asked[-1].HasField("done")
        finally:
            shared.b.generator.reset()
            await asyncio.to_thread(shared.postgres.start)
        events = await running.take("And after?")
        assert events[-1].turn == 3
        assert "And then?" not in events[-1].transcript
        await running.call.done_writing()
        assert await running.call.read() is grpc.aio.EOF
    assert (await taken(shared.a, name))[-1].turn == 4
