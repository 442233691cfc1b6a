"""Feedback, agents and model versions over the wire, with the real reranker."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.reranker.v1 import feedback_service_pb2 as pb
from evenmesh.reranker.v1 import reranker_service_pb2 as reranker_pb
from evenmesh.reranker.v1.feedback_service_pb2_grpc import FeedbackServiceStub
from evenmesh.reranker.v1.reranker_service_pb2_grpc import RerankerServiceStub
from evenmesh.wire.channel import connect
from evenmesh.wire.errors import from_rpc_error
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.__main__ import RerankerService
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.feedback.training import State, TrainingReport
from evenmesh_reranker.models.store import ModelStore, Pointer
from evenmesh_reranker.servicer import RERANKER
from evenmesh_reranker.settings import RerankerSettings
from tests.support import tiny_encoders, tiny_models
from tests.support.tiny_models import SENTENCES

TIMEOUT = 120
PASSAGES = [common_pb2.Passage(id=f"p{at}", text=text) for at, text in enumerate(SENTENCES[:4])]
ANN = common_pb2.Agent(task_id="qa", model_id="ann")
BOB = common_pb2.Agent(task_id="qa", model_id="bob")
Serve = Callable[..., Any]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.cross_encoder(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def personal(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Three models that differ in what they make of agents: Ann is known to all, Bob to the first alone."""
    agents = {"one": [Agent("qa", "ann"), Agent("qa", "bob")], "two": [Agent("qa", "ann")]}
    agents["three"] = agents["two"]
    return {
        name: tiny_encoders.personal(plain, tmp_path_factory.mktemp(name), known, seed=seed)
        for seed, (name, known) in enumerate(agents.items())
    }


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "reranker" / "models")


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Serves a reranker with settings and gives a channel to it."""
    async with AsyncExitStack() as stack:

        async def start(**fields: Any) -> grpc.aio.Channel:
            given = {"port": 0, "home": tmp_path, "grace_s": 0, "dtype": "float32", "device": "cpu"}
            given |= {
                "default_reranker": "none",
                "cross_encoder": "",
                "cpu_engine": "torch",
            } | fields  # tiny models
            settings = RerankerSettings(**given)
            service = RerankerService(settings, Telemetry.disabled())
            server = await stack.enter_async_context(
                MeshServer("reranker", settings, service, telemetry=Telemetry.disabled())
            )
            channel = connect(server.address, service=RERANKER)
            stack.push_async_callback(channel.close)
            return channel

        yield start


def _item(id_: str, **fields: Any) -> pb.Feedback:
    given = {"query": f"query {id_}", "passage_id": "p0", "agent": ANN, "usefulness": 0.5, **fields}
    return pb.Feedback(id=id_, **given)


async def _record(channel: grpc.aio.Channel, *items: pb.Feedback) -> Sequence[pb.FeedbackResult]:
    request = pb.RecordFeedbackRequest(feedback=items)
    response = await FeedbackServiceStub(channel).RecordFeedback(request, timeout=TIMEOUT)
    assert [one.id for one in response.results] == [one.id for one in items]
    return list(response.results)


async def _export(channel: grpc.aio.Channel, **fields: Any) -> list[pb.StoredFeedback]:
    call = FeedbackServiceStub(channel).ExportFeedback(pb.ExportFeedbackRequest(**fields), timeout=TIMEOUT)
    return [one async for part in call for one in part.feedback]


async def _rerank(
    channel: grpc.aio.Channel, agent: common_pb2.Agent | None = None, **fields: Any
) -> reranker_pb.RerankResponse:
    given = {"query": SENTENCES[0], "passages": PASSAGES, "reranker": "cross-encoder", **fields}
    request = reranker_pb.RerankRequest(agent=agent, **given)
    return await RerankerServiceStub(channel).Rerank(request, timeout=TIMEOUT)


async def _promote(channel: grpc.aio.Channel, version: str, **fields: Any) -> pb.RerankerModel:
    request = pb.PromoteModelRequest(version=version, **fields)
    return (await FeedbackServiceStub(channel).PromoteModel(request, timeout=TIMEOUT)).model


async def _rollback(channel: grpc.aio.Channel, **fields: Any) -> pb.RerankerModel:
    request = pb.RollbackModelRequest(**fields)
    return (await FeedbackServiceStub(channel).RollbackModel(request, timeout=TIMEOUT)).model


async def _models(channel: grpc.aio.Channel, **fields: Any) -> list[pb.RerankerModel]:
    request = pb.ListModelsRequest(**fields)
    return list((await FeedbackServiceStub(channel).ListModels(request, timeout=TIMEOUT)).models)


async def _status(channel: grpc.aio.Channel, **fields: Any) -> pb.GetTrainingStatusResponse:
    request = pb.GetTrainingStatusRequest(**fields)
    return await FeedbackServiceStub(channel).GetTrainingStatus(request, timeout=TIMEOUT)


async def test_feedback_is_kept_without_a_learned_model(serve: Serve) -> None:
    channel = await serve()
    items = [
        _item("1", model_version="v1", collection="bikes", ranking=["p1", "p0"], usefulness=1.0),
        _item("2", usefulness=0.0),
    ]
    assert not any(one.HasField("error") or one.duplicate for one in await _record(channel, *items))
    replayed = await _record(channel, items[1], _item("2", usefulness=1.0), _item("3", agent=BOB))
    assert [one.duplicate for one in replayed] == [True, False, False]
    assert (replayed[1].error.code, replayed[1].error.reason) == ("ALREADY_EXISTS", "ALREADY_EXISTS")
    exported = await _export(channel)
    assert [one.feedback for one in exported] == [*items, _item("3", agent=BOB)]
    assert [one.sequence for one in exported] == sorted({one.sequence for one in exported})
    assert [one.feedback.id for one in await _export(channel, agent=BOB)] == ["3"]
    with pytest.raises(grpc.aio.AioRpcError, match="promote a version") as caught:
        await _rerank(channel)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_bad_item_has_its_own_error_and_leaves_the_others_alone(serve: Serve) -> None:
    unknown = pb.Feedback.FromString(_item("u").SerializeToString() + b"\xfa\x07\x01x")  # field 127
    bad: list[tuple[pb.Feedback, str]] = [
        (_item("a", usefulness=float("nan")), "usefulness"),
        (_item("b", usefulness=float("inf")), "usefulness"),
        (_item("c", usefulness=-0.001), "usefulness"),
        (_item("d", usefulness=1.001), "usefulness"),
        (_item("unset", usefulness=None), "usefulness"),
        (_item(""), "id"),
        (_item("x" * 129), "id"),
        (_item("e\n"), "id"),
        (_item("f", query=" "), "query"),
        (_item("g", query="x" * 8193), "query"),
        (_item("h", query="a\x00b"), "query"),
        (_item("i", passage_id=""), "passage_id"),
        (_item("j", passage_id="x" * 257), "passage_id"),
        (_item("k", agent=common_pb2.Agent()), "agent"),
        (_item("l", agent=common_pb2.Agent(task_id="x" * 129)), "agent.task_id"),
        (_item("m", agent=common_pb2.Agent(task_id="a", model_id="\x00")), "agent.model_id"),
        (_item("n", model_version="x" * 129), "model_version"),
        (_item("o", collection="Not a name"), "collection"),
        (_item("p", ranking=["p0", "p0"]), "ranking"),
        (_item("q", ranking=["p1"]), "passage_id"),
        (_item("r", ranking=["p0", ""]), "ranking[1]"),
        (_item("s", ranking=[f"p{at}" for at in range(1001)]), "ranking"),
        (unknown, ""),
    ]
    channel = await serve()
    good = [_item(f"good {at}") for at in range(2)]
    results = await _record(channel, good[0], *(one for one, _ in bad), good[1])
    assert not results[0].HasField("error")
    assert not results[-1].HasField("error")
    assert [(one.error.code, one.error.field) for one in results[1:-1]] == [
        ("INVALID_ARGUMENT", field) for _, field in bad
    ]
    assert results[-2].error.reason == "UNKNOWN_FIELD"
    assert [one.feedback.id for one in await _export(channel)] == ["good 0", "good 1"]
    for count in (0, 1001):
        with pytest.raises(grpc.aio.AioRpcError, match=f"1 to 1000 items, has {count}"):
            await _record(channel, *[_item("x")] * count)


async def test_a_flood_of_one_agent_leaves_others_alone(serve: Serve) -> None:
    channel = await serve(feedback_per_day=500)

    async def flood(client: int) -> list[pb.FeedbackResult]:
        results: list[pb.FeedbackResult] = []
        for turn in range(5):
            ids = [f"{client}-{turn}-{at}" for at in range(1000)]
            results += await _record(channel, *(_item(id_, usefulness=len(id_) % 2) for id_ in ids))
        return results

    async def behave() -> list[pb.FeedbackResult]:
        results = []
        for at in range(40):
            results += await _record(channel, _item(f"b{at}", agent=BOB, usefulness=at % 2))
        return results

    *floods, calm = await asyncio.gather(*map(flood, range(4)), behave())
    assert not any(one.HasField("error") for one in calm)
    refused = [one.error for results in floods for one in results if one.HasField("error")]
    assert {one.code for one in refused} == {"RESOURCE_EXHAUSTED"}
    assert {one.reason for one in refused} <= {"QUOTA", "SHARE_FULL", "OVERLOADED"}
    stored = [one for results in floods for one in results if not one.HasField("error")]
    assert len(stored) == 20_000 - len(refused) == 500
    # A replay of what was stored is reported as such by one at its quota, too.
    (replayed,) = await _record(channel, _item(stored[0].id, usefulness=len(stored[0].id) % 2))
    assert replayed.duplicate
    assert len(await _export(channel, agent=BOB)) == 40


async def test_feedback_for_what_was_never_served_is_refused_if_so_set(serve: Serve, tmp_path: Path) -> None:
    channel = await serve(feedback_served_only=True)
    served = {"query": SENTENCES[0], "ranking": ["p3", "p0"]}
    await _rerank(channel, ANN, reranker="none")
    tries = {
        "served": _item("1", **served),
        "a part of it": _item("2", query=SENTENCES[0], ranking=["p0"]),
        "another query": _item("3", ranking=["p0"]),
        "another passage": _item("4", query=SENTENCES[0], ranking=["p0", "x"]),
        "another agent": _item("5", agent=BOB, **served),
        "another version": _item("6", model_version="v", **served),
        "no ranking": _item("7", query=SENTENCES[0]),
    }
    results = dict(zip(tries, await _record(channel, *tries.values()), strict=True))
    assert [name for name, one in results.items() if not one.HasField("error")] == ["served", "a part of it"]
    reasons = {(one.error.code, one.error.reason) for one in results.values() if one.HasField("error")}
    assert reasons == {("FAILED_PRECONDITION", "NOT_SERVED")}
    again = await serve(feedback_served_only=True)  # another process on the same database
    async with asyncio.timeout(30):
        while (await _record(again, _item("8", **served)))[0].HasField("error"):
            await asyncio.sleep(0.05)  # the first process has not written it down yet


async def test_agents_are_registered_listed_and_known(
    serve: Serve, store: ModelStore, personal: dict[str, Path]
) -> None:
    version = tiny_encoders.keep(store, personal["two"], "by hand")
    store.set_pointer(AllAgents(), Pointer(version))
    channel = await serve(max_registered_agents=2)
    stub = FeedbackServiceStub(channel)
    before = list((await _rerank(channel, BOB)).scores)
    assert before != pytest.approx(list((await _rerank(channel, ANN)).scores), abs=1e-4)
    await _record(channel, _item("1", usefulness=1.0))

    async def register(agent: common_pb2.Agent) -> pb.AgentSummary:
        request = pb.RegisterAgentRequest(agent=agent, description="answers")
        return (await stub.RegisterAgent(request, timeout=TIMEOUT)).agent

    bob = await register(BOB)
    assert (bob.agent, bob.description, bob.known_to_model) == (BOB, "answers", True)
    assert list((await _rerank(channel, BOB)).scores) == pytest.approx(before, abs=1e-6)
    assert (await register(ANN)).num_feedback == 1
    with pytest.raises(grpc.aio.AioRpcError, match="limit of 2 registered agents is reached") as caught:
        await register(common_pb2.Agent(task_id="t", model_id="m"))
    assert (caught.value.code(), from_rpc_error(caught.value).reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUOTA",
    )
    for agent in (common_pb2.Agent(task_id="t"), common_pb2.Agent(model_id="m")):
        with pytest.raises(grpc.aio.AioRpcError, match="must be 1 to 128 bytes"):
            await register(agent)
    first = await stub.ListAgents(pb.ListAgentsRequest(page_size=1), timeout=TIMEOUT)
    rest = await stub.ListAgents(pb.ListAgentsRequest(page_token=first.next_page_token), timeout=TIMEOUT)
    assert [one.agent for one in (*first.agents, *rest.agents)] == [ANN, BOB]
    assert rest.next_page_token == ""
    # A server that starts later gives the model the tokens, too.
    assert list((await _rerank(await serve(), BOB)).scores) == pytest.approx(before, abs=1e-6)


async def test_an_agent_is_deleted_and_served_what_all_get(
    serve: Serve, store: ModelStore, personal: dict[str, Path]
) -> None:
    base = tiny_encoders.keep(store, personal["one"], "base")
    own = tiny_encoders.keep_adapter(store, base, Agent("qa", "ann"), 1)
    channel = await serve(max_registered_agents=1, feedback_per_day=1500)
    stub = FeedbackServiceStub(channel)
    for version in (base, own):
        await _promote(channel, version)
    assert (await _rerank(channel, ANN)).model_version == own
    await stub.RegisterAgent(pb.RegisterAgentRequest(agent=ANN), timeout=TIMEOUT)
    for part in (range(1000), range(1000, 1600)):
        await _record(channel, *(_item(str(at)) for at in part))
    await _record(channel, _item("1", agent=BOB))

    async def delete(agent: common_pb2.Agent) -> tuple[bool, int, int]:
        done = await stub.DeleteAgent(pb.DeleteAgentRequest(agent=agent), timeout=TIMEOUT)
        return done.deleted, done.num_feedback, done.num_models

    assert await delete(ANN) == (True, 1500, 1)
    assert await delete(ANN) == (False, 0, 0)
    assert (await _rerank(channel, ANN)).model_version == base
    assert [one.version for one in await _models(channel)] == [base]
    listed = await stub.ListAgents(pb.ListAgentsRequest(), timeout=TIMEOUT)
    assert [(one.agent, one.num_feedback) for one in listed.agents] == [(BOB, 1)]
    assert [one.feedback.agent for one in await _export(channel)] == [BOB]
    (again,) = await _record(channel, _item("1"))
    assert (again.duplicate, again.HasField("error")) == (False, False), "it has a day's quota again"
    assert await delete(ANN) == (True, 1, 0)
    await stub.RegisterAgent(pb.RegisterAgentRequest(agent=BOB), timeout=TIMEOUT)  # there is room
    for agent in (common_pb2.Agent(), common_pb2.Agent(task_id="x" * 129)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await delete(agent)
        assert from_rpc_error(refused.value).code is grpc.StatusCode.INVALID_ARGUMENT


async def test_versions_are_promoted_and_rolled_back_while_serving(
    serve: Serve, store: ModelStore, plain: Path, personal: dict[str, Path]
) -> None:
    channel = await serve(cross_encoder=str(plain))
    (origin,) = await _models(channel)
    one, two = (tiny_encoders.keep(store, personal[name], name) for name in ("one", "two"))
    scores = {origin.version: list((await _rerank(channel, ANN)).scores)}
    for version in (one, two):
        model = await _promote(channel, version)
        assert (model.version, model.serving, dict(model.metrics)) == (version, True, {"utility": 0.5})
        response = await _rerank(channel, ANN)
        assert response.model_version == version
        scores[version] = list(response.scores)
    assert len({tuple(one) for one in scores.values()}) == 3
    listed = await _models(channel)
    assert (listed[0].version, listed[0].serving) == (two, True)
    assert {each.version for each in listed} == {one, two, origin.version}
    assert sum(each.serving for each in listed) == 1
    assert "[model:bob]" in {each.version: each for each in listed}[one].agent_tokens
    for expected in (one, origin.version):
        assert (await _rollback(channel)).version == expected
        response = await _rerank(channel, ANN)
        assert (response.model_version, list(response.scores)) == (expected, pytest.approx(scores[expected]))
    with pytest.raises(
        grpc.aio.AioRpcError, match="there is no earlier version that can be served"
    ) as caught:
        await _rollback(channel)
    assert from_rpc_error(caught.value).reason == "NO_EARLIER_MODEL"
    with pytest.raises(grpc.aio.AioRpcError, match="there is no version 'nope'") as caught:
        await _promote(channel, "nope")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    # What was promoted last is served by who starts next.
    await _promote(channel, two)
    assert (await _rerank(await serve(cross_encoder=str(plain)))).model_version == two


async def test_requests_while_promoting_are_scored_by_one_version_each(
    serve: Serve, store: ModelStore, personal: dict[str, Path]
) -> None:
    versions = [tiny_encoders.keep(store, personal[name], name) for name in ("one", "two", "three")]
    channel = await serve()
    expected = {}
    for version in versions:
        await _promote(channel, version)
        expected[version] = list((await _rerank(channel, ANN)).scores)
    ended = asyncio.Event()
    seen: list[str] = []

    async def ask() -> None:
        while not ended.is_set():
            response = await _rerank(channel, ANN)
            assert list(response.scores) == pytest.approx(expected[response.model_version], abs=1e-5)
            seen.append(response.model_version)

    asking = [asyncio.create_task(ask()) for _ in range(4)]
    for version in versions * 2:
        await _promote(channel, version)
        response = await _rerank(channel, ANN)
        assert response.model_version == version
    ended.set()
    await asyncio.gather(*asking)
    assert set(seen) == set(versions)


async def test_a_damaged_version_is_refused_by_name_and_the_old_one_serves(
    serve: Serve, store: ModelStore, personal: dict[str, Path], tmp_path: Path
) -> None:
    good, bad = (tiny_encoders.keep(store, personal[name], name) for name in ("one", "two"))
    weights = tmp_path / "reranker" / "models" / "versions" / bad / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    channel = await serve()
    await _promote(channel, good)
    with pytest.raises(
        grpc.aio.AioRpcError, match=rf"version {bad} cannot be served: model.safetensors has"
    ) as caught:
        await _promote(channel, bad)
    assert (caught.value.code(), from_rpc_error(caught.value).reason) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        "DAMAGED_MODEL",
    )
    assert str(tmp_path) not in str(caught.value.details())
    assert (await _rerank(channel)).model_version == good
    # A pointer at what was damaged later: the one before it serves, also in a process that starts.
    store.set_pointer(AllAgents(), Pointer(bad, (good,)))
    assert (await _rerank(await serve())).model_version == good
    # Rolling back passes over what is damaged.
    third = tiny_encoders.keep(store, personal["three"], "three")
    await _promote(channel, third)
    store.set_pointer(AllAgents(), Pointer(third, (bad, good)))
    later = await serve()
    assert (await _rollback(later)).version == good


async def test_another_process_promotes(serve: Serve, store: ModelStore, personal: dict[str, Path]) -> None:
    one, two = (tiny_encoders.keep(store, personal[name], name) for name in ("one", "two"))
    channel, other = await serve(model_poll_s=0.05), await serve(model_poll_s=0.05)
    for version in (one, two):
        await _promote(channel, version)
        async with asyncio.timeout(TIMEOUT):
            while (await _rerank(other, reranker="none")).reranker and version not in {
                model.version for model in await _models(other) if model.serving
            }:
                await asyncio.sleep(0.05)
        assert (await _rerank(other)).model_version == version


async def test_an_agent_gets_its_own_version(
    serve: Serve, store: ModelStore, personal: dict[str, Path]
) -> None:
    ann = Agent("qa", "ann")
    base = tiny_encoders.keep(store, personal["one"], "base")
    full = tiny_encoders.keep(store, personal["two"], "online", ann)
    adapter = tiny_encoders.keep_adapter(store, base, ann, 1)
    of_bob = tiny_encoders.keep_adapter(store, base, Agent("qa", "bob"), 2)
    channel = await serve(agent_memory_mb=1)
    with pytest.raises(grpc.aio.AioRpcError, match=f"changes version {base}, which does not serve") as caught:
        await _promote(channel, adapter)
    assert from_rpc_error(caught.value).reason == "BASE_NOT_SERVED"
    await _promote(channel, base)
    of_all = list((await _rerank(channel, BOB)).scores)
    seen = {}
    for version in (full, adapter):
        assert (await _promote(channel, version)).agent == ANN
        response = await _rerank(channel, ANN)
        assert response.model_version == version
        seen[version] = list(response.scores)
    # Nobody else is touched by it.
    response = await _rerank(channel, BOB)
    assert (response.model_version, list(response.scores)) == (base, of_all)
    await _promote(channel, of_bob)
    together = await asyncio.gather(*(_rerank(channel, one) for one in (ANN, BOB, None) * 4))
    assert [one.model_version for one in together] == [adapter, of_bob, base] * 4
    assert list(together[0].scores) == pytest.approx(seen[adapter], abs=1e-5)
    listed = await _models(channel)
    assert next(one.version for one in listed if one.serving) == base
    assert {one.version for one in listed if one.serving} == {base, adapter, of_bob}
    assert {one.version for one in await _models(channel, agent=ANN)} == {full, adapter}
    kinds = {one.version: (one.kind, one.base_version) for one in listed}
    assert kinds[adapter] == (pb.RerankerModel.KIND_ADAPTER, base)
    assert (await _rollback(channel, agent=ANN)).version == full
    assert (await _rerank(channel, ANN)).model_version == full
    assert (await _rollback(channel, agent=ANN)).version == base
    assert (await _rerank(channel, ANN)).model_version == base
    # Once another model serves all, an adapter to the one before is not used.
    three = tiny_encoders.keep(store, personal["three"], "three")
    await _promote(channel, three)
    assert (await _rerank(channel, BOB)).model_version == three
    await _rollback(channel)
    assert (await _rerank(channel, BOB)).model_version == of_bob


async def test_an_agents_damaged_version_gives_way_to_that_of_all(
    serve: Serve, store: ModelStore, personal: dict[str, Path], tmp_path: Path
) -> None:
    base = tiny_encoders.keep(store, personal["one"], "base")
    own = tiny_encoders.keep(store, personal["two"], "online", Agent("qa", "ann"))
    store.set_pointer(AllAgents(), Pointer(base))
    store.set_pointer(Agent("qa", "ann"), Pointer(own))
    shutil.rmtree(tmp_path / "reranker" / "models" / "versions" / own)
    channel = await serve()
    assert (await _rerank(channel, ANN)).model_version == base


async def test_tokens_of_agents_are_merged_into_a_newer_model(
    serve: Serve, store: ModelStore, personal: dict[str, Path]
) -> None:
    older, newer = (tiny_encoders.keep(store, personal[name], name) for name in ("one", "two"))
    channel = await serve()
    await _promote(channel, older)
    merged = await _promote(channel, newer, merge_agent_tokens=True)
    assert merged.parent_version == newer
    assert "[model:bob]" in merged.agent_tokens
    assert dict(merged.metrics) == {"utility": 0.5}
    response = await _rerank(channel, BOB)
    assert response.model_version == merged.version
    of_bob = list(response.scores)
    of_ann = list((await _rerank(channel, ANN)).scores)
    await _promote(channel, newer)
    assert list((await _rerank(channel, ANN)).scores) == pytest.approx(of_ann, abs=1e-6)
    assert list((await _rerank(channel, BOB)).scores) != pytest.approx(of_bob, abs=1e-4)
    # Nothing is lacking now: the version itself is served.
    await _promote(channel, merged.version)
    assert (await _promote(channel, older, merge_agent_tokens=True)).version == older


async def test_training_is_reported_as_it_is(serve: Serve, tmp_path: Path) -> None:
    channel = await serve()
    idle = await _status(channel)
    assert (idle.state, idle.pending_feedback, len(idle.trainings)) == (
        pb.GetTrainingStatusResponse.STATE_IDLE,
        0,
        0,
    )
    await _record(channel, *(_item(str(at), query=f"q{at // 2}", passage_id=f"p{at}") for at in range(6)))
    waiting = await _status(channel)
    assert (waiting.state, waiting.pending_feedback) == (pb.GetTrainingStatusResponse.STATE_IDLE, 6)
    assert waiting.message == "nothing is being trained; 6 items of feedback wait"
    database = Database(RerankerSettings(home=tmp_path).database())
    await database.open()
    log = SqlTrainingLog(database)
    await log.report(TrainingReport(Agent("qa", "ann"), State.RUNNING, 0.25, "epoch 1", 2, "v9"))
    await database.close()
    running = await _status(channel)
    assert (running.state, running.progress) == (pb.GetTrainingStatusResponse.STATE_RUNNING, 0.25)
    assert running.message == "qa/ann: epoch 1"
    assert (running.pending_feedback, [one.pending_feedback for one in running.trainings]) == (4, [4])
    (of_ann,) = (await _status(channel, agent=ANN)).trainings
    assert (of_ann.pending_feedback, of_ann.pending_queries, of_ann.candidate_version) == (4, 2, "v9")
    assert of_ann.HasField("updated_at")
    (of_bob,) = (await _status(channel, agent=BOB)).trainings
    assert (of_bob.state, of_bob.pending_feedback) == (pb.GetTrainingStatusResponse.STATE_IDLE, 0)
