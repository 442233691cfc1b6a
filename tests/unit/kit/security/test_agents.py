"""Credentials that are bound to agents: whom they may act as, and how that travels on to other services."""

# ruff: noqa: N802 - the names are those of the contract

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from evenmesh.common.v1.common_pb2 import Agent
from evenmesh.reranker.v1 import reranker_service_pb2 as pb
from evenmesh.reranker.v1 import reranker_service_pb2_grpc as rpc
from evenmesh.wire.channel import connect
from evenmesh.wire.credentials import AGENTS_KEY, Credential
from evenmesh.wire.errors import InvalidField, PermissionDenied, from_rpc_error
from evenmesh.wire.security import ChannelSecurity
from evenmesh_kit.rpc.server import MeshServer, Registration
from evenmesh_kit.security import agents, audit
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import MAX_AGENTS_BYTES, AgentName, Caller, Role, agent_names
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.lifecycle import Idle

MINE = AgentName("qa", "google/flan-t5")
SERVICE = "evenmesh.reranker.v1.RerankerService"


def test_the_name_of_a_model_may_have_a_slash_and_that_of_a_task_none() -> None:
    assert AgentName.read("qa/google/flan-t5", "agents") == MINE
    assert str(MINE) == "qa/google/flan-t5"


@pytest.mark.parametrize(
    "text", ["", "qa", "qa/", "/m", "qa/" + "m" * 129, "q" * 129 + "/m", "qa/m\n", "q\x00/m", "qa/\ud800"]
)
def test_what_names_no_agent_is_refused(text: str) -> None:
    with pytest.raises(InvalidField, match="must be TASK/MODEL") as refused:
        agent_names([text], "agents")
    assert refused.value.field == "agents"


def test_a_binding_names_an_agent_and_fits_into_metadata() -> None:
    with pytest.raises(InvalidField, match="must name an agent"):
        agent_names([], "agents")
    with pytest.raises(InvalidField, match=f"at most {MAX_AGENTS_BYTES} bytes"):
        agent_names([f"qa/{at:0120}" for at in range(40)], "agents")


async def test_who_is_bound_acts_as_its_agents_alone(caplog: pytest.LogCaptureFixture) -> None:
    agents.check("anyone", "at-all")
    agents.check_all()
    callers.enter(Caller("ada", "acme", frozenset({Role.ADMIN}), agents=frozenset({MINE})))
    agents.check("qa", "google/flan-t5")
    agents.check("", "")
    # The same letters, another agent.
    with caplog.at_level(logging.INFO, audit.LOGGER):
        for other in (("qa/google", "flan-t5"), ("qa", "other"), ("qa", ""), ("", "google/flan-t5")):
            assert not agents.may(*other)
            with pytest.raises(
                PermissionDenied, match="this credential may act only as qa/google/flan-t5: name the task"
            ):
                agents.check(*other)
    assert [vars(one)["reason"] for one in caplog.records] == ["OTHER_AGENT"] * 4
    with pytest.raises(PermissionDenied) as refused:
        agents.check_all("agent")
    assert refused.value.field == "agent"


class Last(rpc.RerankerServiceServicer):
    """A service that checks whom a request is of."""

    async def Rerank(self, request: Any, context: Any) -> Any:
        agents.check(request.agent.task_id, request.agent.model_id)
        return pb.RerankResponse(reranker=callers.current().tenant)


class First(rpc.RerankerServiceServicer):
    """A service that calls the next one, with its own credential, without a check of its own."""

    def __init__(self, following: Any) -> None:
        self._following = following

    async def Rerank(self, request: Any, context: Any) -> Any:
        return await rpc.RerankerServiceStub(self._following).Rerank(request)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of keys."""
    return tmp_path / "keys.toml"


def made(file: Path, name: str, *roles: Role, **fields: Any) -> Credential:
    """A credential, whose key the file gets."""
    key, digest = new_key()
    entry = {"name": name, "sha256": digest, "tenant": "acme", "roles": list(roles), **fields}
    add_entry(file, KeyEntry.read(entry))
    return Credential(key)


@contextlib.asynccontextmanager
async def served(servicer: Any, **settings: Any) -> AsyncIterator[MeshServer]:
    """A running server."""
    registration = Registration(rpc.add_RerankerServiceServicer_to_server, servicer, SERVICE)
    given = ServiceSettings(port=0, grace_s=0, **settings)
    async with MeshServer("s", given, Idle(registration), telemetry=Telemetry.disabled()) as server:
        yield server


async def outcome(channel: Any, agent: AgentName, **more: Any) -> str:
    """What a call as an agent ends with."""
    request = pb.RerankRequest(agent=Agent(task_id=agent.task_id, model_id=agent.model_id))
    try:
        reply: Any = await rpc.RerankerServiceStub(channel).Rerank(request, **more)
    except Exception as error:  # noqa: BLE001 - whatever it ends with
        return from_rpc_error(error).reason  # type: ignore[arg-type]
    return str(reply.reranker)


@pytest.mark.parametrize("checks", [True, False], ids=["next-checks-keys", "next-trusts-this-machine"])
async def test_a_binding_travels_on_with_the_calls_of_services(file: Path, checks: bool) -> None:
    mesh = made(file, "mesh", Role.SERVICE)
    bound = made(file, "ada", Role.ASK, agents=[str(MINE), "qa/otter \N{OTTER}"])
    free = made(file, "bob", Role.ASK)
    guarded: dict[str, Any] = {"api_keys": file}
    async with contextlib.AsyncExitStack() as stack:
        last = await stack.enter_async_context(served(Last(), **(guarded if checks else {})))
        security = ChannelSecurity(credential=mesh)
        following = await stack.enter_async_context(connect(last.address, service=SERVICE, security=security))
        first = await stack.enter_async_context(served(First(following), **guarded))

        async def asked(credential: Credential, agent: AgentName) -> str:
            security = ChannelSecurity(credential=credential)
            async with connect(first.address, service=SERVICE, security=security) as channel:
                return await outcome(channel, agent)

        victim = AgentName("qa", "victim")
        assert await asked(bound, MINE) == "acme"
        assert await asked(bound, AgentName("qa", "otter \N{OTTER}")) == "acme"
        assert await asked(bound, victim) == "PERMISSION_DENIED"
        assert await asked(free, victim) == "acme"
        ends = await asyncio.gather(*(asked(one, victim) for one in (bound, free) * 4))
        assert ends == ["PERMISSION_DENIED", "acme"] * 4


async def test_the_audit_log_says_who_tried_to_act_as_another(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bound = made(file, "ada", Role.ASK, agents=[str(MINE)])
    with caplog.at_level(logging.INFO, audit.LOGGER):
        async with (
            served(Last(), api_keys=file) as server,
            connect(server.address, service=SERVICE, security=ChannelSecurity(credential=bound)) as channel,
        ):
            assert await outcome(channel, AgentName("qa", "victim")) == "PERMISSION_DENIED"
    (record,) = (vars(one) for one in caplog.records if one.name == audit.LOGGER)
    assert (record["event"], record["actor"], record["tenant"]) == ("denied", "ada", "acme")
    assert (record["method"], record["reason"]) == (f"/{SERVICE}/Rerank", "OTHER_AGENT")
    assert record["peer"].startswith("ipv4:127.0.0.1:")


async def test_metadata_of_a_caller_widens_nothing(file: Path) -> None:
    bound = made(file, "ada", Role.ASK, agents=[str(MINE)])
    mesh = made(file, "mesh", Role.SERVICE)
    other = AgentName("qa", "other")
    metadata = ((AGENTS_KEY, str(other).encode()),)
    async with served(Last(), api_keys=file) as server:
        for credential, agent, expected in (
            (bound, other, "PERMISSION_DENIED"),
            (bound, MINE, "acme"),
            (mesh, other, "default"),
            (mesh, MINE, "PERMISSION_DENIED"),
        ):
            security = ChannelSecurity(credential=credential)
            async with connect(server.address, service=SERVICE, security=security) as channel:
                assert await outcome(channel, agent, metadata=metadata) == expected
                twice = await outcome(channel, agent, metadata=metadata * 2)
                assert twice == "TWO_CREDENTIALS"
                empty = ((AGENTS_KEY, b""),)
                wrong = await outcome(channel, other, metadata=empty)
                assert wrong == ("PERMISSION_DENIED" if credential is bound else "INVALID_FIELD")
