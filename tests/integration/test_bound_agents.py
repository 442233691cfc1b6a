"""Credentials that are bound to agents before the real reranker, by gRPC, REST and MCP: nobody speaks for another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import httpx
import pytest

import evenmesh
from evenmesh.addresses import Addresses
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as evaluator_grpc
from evenmesh.types.request import Agent
from evenmesh.wire.channel import connect
from evenmesh.wire.credentials import Credential
from evenmesh.wire.errors import NotFound, PermissionDenied, from_rpc_error
from evenmesh.wire.security import ChannelSecurity
from evenmesh_evaluator.__main__ import EvaluatorService
from evenmesh_evaluator.settings import EvaluatorSettings
from evenmesh_gateway.app import Gateway
from evenmesh_gateway.http.server import HttpServer
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_kit.security.keys import KeyEntry, add_entry, new_key
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.__main__ import RerankerService
from evenmesh_reranker.domain import Agent as OwnerOfModel
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.settings import RerankerSettings
from tests.support.methods import METHODS

if TYPE_CHECKING:
    from mcp import ClientSession

MINE, VICTIM = Agent("qa", "mine"), Agent("qa", "victim")
ROLES = ["ask", "feedback", "train"]
REST = "/v1/evenmesh.reranker.v1"


TAKE_AGENTS = frozenset(
    {
        # tests/unit/orchestrator/asks/test_acting_agents.py has those of the orchestrator.
        "orchestrator.v1.OrchestratorService/Ask",
        "orchestrator.v1.OrchestratorService/Audit",
        "orchestrator.v1.OrchestratorService/Converse",
        "reranker.v1.RerankerService/Rerank",
        "reranker.v1.FeedbackService/RecordFeedback",
        "reranker.v1.FeedbackService/ExportFeedback",
        "reranker.v1.FeedbackService/RegisterAgent",
        "reranker.v1.FeedbackService/DeleteAgent",
        "reranker.v1.FeedbackService/ListModels",
        "reranker.v1.FeedbackService/RollbackModel",
        "reranker.v1.FeedbackService/GetTrainingStatus",
    }
)
"""Methods whose requests name an agent: each checks it, and a test here or there tries it."""


def test_it_is_known_of_every_method_that_its_request_names_an_agent() -> None:
    def names(message: Any) -> bool:
        fields = (one.message_type for one in message.fields if one.message_type is not None)
        return message.full_name == "evenmesh.common.v1.Agent" or any(map(names, fields))

    found = {name.removeprefix("/evenmesh.") for name, one in METHODS.items() if names(one.input_type)}
    assert found == TAKE_AGENTS


def judged(agent: Agent, usefulness: float = 1.0, **fields: Any) -> evenmesh.Feedback:
    """A judgement of an agent."""
    return evenmesh.Feedback("how often?", "p1", usefulness, agent, **fields)


@dataclass
class Reranker:
    """A running reranker, the keys of its callers, and the versions that it has."""

    address: str
    keys: dict[str, str]
    file: Path
    versions: dict[str, str]

    def client(self, who: str) -> evenmesh.AsyncClient:
        """A client of a caller."""
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("EVENMESH_API_KEY", self.keys[who])
            return evenmesh.AsyncClient(Addresses(reranker=self.address), timeout=60)


@pytest.fixture(params=[True, False], ids=["keys-checked", "keys-checked-by-the-gateway-alone"])
def checked(request: pytest.FixtureRequest) -> bool:
    """Whether the reranker checks keys itself."""
    return bool(request.param)


async def _reranker(stack: AsyncExitStack, folder: Path, *, checked: bool = True) -> Reranker:
    file = folder / "keys.toml"
    keys = {}
    bound: dict[str, dict[str, Any]] = {"bound": {"agents": ["qa/mine"]}, "free": {}}
    for name, fields in bound.items():
        keys[name], digest = new_key()
        entry = {"name": name, "sha256": digest, "tenant": "acme", "roles": ROLES, **fields}
        add_entry(file, KeyEntry.read(entry))
    store, versions = ModelStore(folder / "reranker" / "models"), {}
    for name, agent in {"mine": MINE, "victim": VICTIM, "all": None}.items():
        owner = None if agent is None else OwnerOfModel(agent.task_id, agent.model_id, "acme")
        with store.write(Lineage(f"of {name}", tenant="acme", agent=owner)) as draft:
            (draft.folder / "model.safetensors").write_bytes(name.encode())
        versions[name] = draft.version
    given: dict[str, Any] = {"api_keys": file} if checked else {}
    settings = RerankerSettings(
        home=folder, port=0, grace_s=0, default_reranker="none", cross_encoder="", **given
    )
    telemetry = Telemetry.disabled()
    service = RerankerService(settings, telemetry)
    server = MeshServer("reranker", settings, service, telemetry=telemetry)
    await stack.enter_async_context(server)
    return Reranker(server.address, keys, file, versions)


@pytest.fixture
async def reranker(tmp_path: Path) -> AsyncIterator[Reranker]:
    """A reranker that checks keys, with a version of each agent and one of all."""
    async with AsyncExitStack() as stack:
        yield await _reranker(stack, tmp_path)


async def test_feedback_is_given_as_ones_own_agents_alone(reranker: Reranker) -> None:
    async with reranker.client("bound") as bound, reranker.client("free") as free:
        squatted = judged(VICTIM, 0.0, id=judged(VICTIM).key)
        for forged in ([squatted], [judged(MINE), judged(VICTIM, 0.0)]):
            with pytest.raises(PermissionDenied, match="this credential may act only as qa/mine") as refused:
                await bound.record_feedback(forged)
            assert refused.value.field == f"feedback[{len(forged) - 1}].agent"
        (honest,) = (await free.record_feedback(judged(VICTIM))).results
        assert (honest.error, honest.flagged, honest.duplicate) == (None, False, False)
        (own,) = (await bound.record_feedback(judged(MINE))).results
        assert (own.error, own.duplicate) == (None, False), "the refused batch stored nothing"


async def test_agents_are_registered_listed_and_read_by_whom_they_are_of(reranker: Reranker) -> None:
    async with reranker.client("bound") as bound, reranker.client("free") as free:
        for agent in (VICTIM, MINE):
            await free.record_feedback(judged(agent))
        assert (await bound.register_agent(MINE)).agent == MINE
        with pytest.raises(PermissionDenied):
            await bound.register_agent(VICTIM)
        assert [one.agent for one in await bound.agents()] == [MINE]
        assert [one.agent for one in await free.agents()] == [VICTIM, MINE]
        assert [one.feedback.agent async for one in bound.export_feedback(agent=MINE)] == [MINE]
        for other in (VICTIM, None):
            with pytest.raises(PermissionDenied):
                _ = [one async for one in bound.export_feedback(agent=other)]
        listed = {one.agent for one in (await bound.training_status()).trainings}
        assert listed == {MINE}
        with pytest.raises(PermissionDenied):
            await bound.training_status(agent=VICTIM)


async def test_only_ones_own_agents_are_deleted(reranker: Reranker) -> None:
    async with reranker.client("bound") as bound, reranker.client("free") as free:
        for agent in (MINE, VICTIM):
            await free.record_feedback(judged(agent))
        with pytest.raises(PermissionDenied):
            await bound.delete_agent(VICTIM)
        done = await bound.delete_agent(MINE)
        assert (done.deleted, done.num_feedback, done.num_models) == (True, 1, 1)
        assert [one.agent for one in await free.agents()] == [VICTIM]
        assert {one.agent for one in await free.models()} == {None, VICTIM}


async def test_models_of_others_are_not_promoted_rolled_back_or_listed(reranker: Reranker) -> None:
    async with reranker.client("bound") as bound:
        assert {one.agent for one in await bound.models()} == {None, MINE}
        with pytest.raises(PermissionDenied):
            await bound.models(agent=VICTIM)
        for name in ("victim", "all"):
            with pytest.raises(PermissionDenied) as refused:
                await bound.promote_model(reranker.versions[name])
            assert refused.value.field == "version"
        with pytest.raises(evenmesh.MeshError) as unusable:  # its files are no model
            await bound.promote_model(reranker.versions["mine"])
        assert not isinstance(unusable.value, PermissionDenied)
        for agent in (VICTIM, None):
            with pytest.raises(PermissionDenied):
                await bound.rollback_model(agent=agent)
    async with reranker.client("free") as free:
        with pytest.raises(NotFound):
            await free.promote_model("0" * 16)


@pytest.fixture
async def gateway(tmp_path: Path, checked: bool) -> AsyncIterator[tuple[httpx.AsyncClient, Reranker]]:
    """A client of a gateway that checks keys, before a reranker that may."""
    async with AsyncExitStack() as stack:
        reranker = await _reranker(stack, tmp_path, checked=checked)
        settings = GatewaySettings(
            home=tmp_path, port=0, grace_s=5, reranker_target=reranker.address, api_keys=reranker.file
        )
        app = Gateway(settings, Telemetry.disabled())
        await app.start()
        stack.push_async_callback(app.close)
        server = HttpServer(app.app, settings)
        await server.start()
        stack.push_async_callback(server.stop)
        client = httpx.AsyncClient(base_url=f"http://{server.address}", timeout=60)
        yield await stack.enter_async_context(client), reranker


async def test_nobody_speaks_for_another_over_http(gateway: tuple[httpx.AsyncClient, Reranker]) -> None:
    client, reranker = gateway
    item = {"id": "1", "query": "q", "passage_id": "p", "usefulness": 0.0}
    for who, agent, status in (
        ("bound", MINE, 200),
        ("bound", VICTIM, 403),
        ("free", VICTIM, 200),
        ("bound", VICTIM, 403),
    ):
        ids = {"task_id": agent.task_id, "model_id": agent.model_id}
        headers = {"authorization": f"Bearer {reranker.keys[who]}"}
        given = {"feedback": [{**item, "agent": ids}]}
        reply = await client.post(f"{REST}.FeedbackService/RecordFeedback", json=given, headers=headers)
        assert reply.status_code == status, reply.text
        ranked = {"query": "q", "passages": [{"id": "p", "text": "t"}], "agent": ids}
        reply = await client.post(f"{REST}.RerankerService/Rerank", json=ranked, headers=headers)
        assert reply.status_code == status, reply.text
        cohere = {"query": "q", "documents": ["t"], "evenmesh": {"agent": ids}}
        reply = await client.post("/v1/rerank", json=cohere, headers=headers)
        assert reply.status_code == status, reply.text


async def test_nobody_speaks_for_another_by_mcp(gateway: tuple[httpx.AsyncClient, Reranker]) -> None:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    client, reranker = gateway
    headers = {"authorization": f"Bearer {reranker.keys['bound']}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(f"{client.base_url}/mcp", http_client=cast(Any, http)) as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        assert not (await _given(session, MINE)).is_error
        refused = await _given(session, VICTIM)
        assert refused.is_error
        assert "this credential may act only as qa/mine" in refused.content[0].text


async def _given(session: ClientSession, agent: Agent) -> Any:
    given = {"query": "q", "passage_id": "p", "usefulness": 0.5}
    return await session.call_tool("give_feedback", {**given, "task": agent.task_id, "model": agent.model_id})


async def test_who_is_bound_stores_no_observations(tmp_path: Path) -> None:
    """With those of asks that never were it could change statements, and what other agents are shown."""
    file, keys = tmp_path / "keys.toml", {}
    people: dict[str, dict[str, Any]] = {
        "bound": {"roles": ["ask"], "tenant": "acme", "agents": ["qa/mine"]},
        "free": {"roles": ["ask"], "tenant": "acme"},
        "mesh": {"roles": ["service"], "tenant": "default"},
    }
    for name, fields in people.items():
        keys[name], digest = new_key()
        add_entry(file, KeyEntry.read({"name": name, "sha256": digest, **fields}))
    settings = EvaluatorSettings(home=tmp_path, port=0, grace_s=0, api_keys=file)
    telemetry = Telemetry.disabled()
    service = EvaluatorService(settings, telemetry)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            MeshServer("evaluator", settings, service, telemetry=telemetry)
        )

        async def stored(who: str, id_: str) -> bool:
            security = ChannelSecurity(credential=Credential(keys[who]))
            observation = evaluator_pb.Observation(id=id_, run_id="r", query_id="q")
            async with connect(server.address, service="evaluator", security=security) as channel:
                call = evaluator_grpc.EvaluatorServiceStub(channel).Observe(
                    iter([evaluator_pb.ObserveRequest(observation=observation)])
                )
                return bool((await call.read()).HasField("ack"))

        assert await stored("free", "a")
        callers.enter(Caller("outbox", "acme", frozenset({Role.SERVICE})))
        assert await stored("mesh", "b")
        with pytest.raises(grpc.RpcError) as refused:
            await stored("bound", "c")
        error = from_rpc_error(refused.value)
        assert isinstance(error, PermissionDenied)
        assert "qa/mine" in error.message
