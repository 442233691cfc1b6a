"""What a client says once it is closed, or given to another process."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from evenmesh import Addresses, AsyncClient, Client
from evenmesh.wire.errors import FailedPrecondition, MeshError
from tests.support.scripted import ScriptedMesh

NOWHERE = Addresses(*["127.0.0.1:1"] * 5)
CALLS: dict[str, Callable[[Any], Any]] = {
    "one reply": lambda mesh: mesh.collections(),
    "feedback": lambda mesh: mesh.delete_passages("c", ["p"]),
    "an answer": lambda mesh: mesh.answer("q"),
    "an ask": lambda mesh: mesh.ask("q"),
    "an audit": lambda mesh: mesh.audit("q", useful=[]),
    "a stream": lambda mesh: mesh.passages("c"),
    "an ingest": lambda mesh: mesh.ingest([], "c"),
    "a turn": lambda mesh: mesh.converse().answer("q"),
    "a vote": lambda mesh: mesh.vote_anytime([], num_answers=2),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_of_a_closed_client_is_refused(call: Callable[[Any], Any]) -> None:
    mesh = Client(NOWHERE)
    mesh.close()
    with pytest.raises(FailedPrecondition, match="this client is closed") as caught:
        list(call(mesh))
    assert caught.value.reason == "CLIENT_CLOSED"


@pytest.mark.parametrize("give", [pickle.dumps, copy.copy, copy.deepcopy])
async def test_a_client_that_is_given_to_another_process_says_what_to_do(give: Callable[[Any], Any]) -> None:
    with Client(NOWHERE) as mesh, pytest.raises(TypeError, match="open one in each process"):
        give(mesh)
    async with AsyncClient(NOWHERE) as waits:
        with pytest.raises(TypeError, match="open one in each process"):
            give(waits)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_of_a_closed_async_client_is_refused(call: Callable[[Any], Any]) -> None:
    mesh = AsyncClient(NOWHERE)
    await mesh.close()
    with pytest.raises(FailedPrecondition, match="this client is closed") as caught:
        begun = call(mesh)
        if hasattr(begun, "__aiter__"):
            async for _ in begun:
                pass
        else:
            await begun
    assert caught.value.reason == "CLIENT_CLOSED"


async def test_a_client_that_is_closed_within_a_conversation_or_a_loop(scripted: ScriptedMesh) -> None:
    sync = Client(scripted.addresses)
    talk = sync.converse()
    talk.answer("q")
    events = sync.ask("q")
    sync.close()
    with pytest.raises(MeshError):
        talk.answer("r")
    with pytest.raises(FailedPrecondition):
        next(iter(events))
    mesh = AsyncClient(scripted.addresses)
    aio = mesh.converse()
    await aio.answer("q")
    later = mesh.ask("q")
    await mesh.close()
    with pytest.raises(MeshError):
        await aio.answer("r")
    with pytest.raises(FailedPrecondition):
        await anext(later)


async def test_to_close_twice_and_to_ask_for_the_status_is_fine() -> None:
    mesh = Client(NOWHERE)
    mesh.close()
    mesh.close()
    assert len(mesh.status(timeout=0.1)) == 5
