"""The clients and the command line against a real reranker: feedback, agents, versions, training."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from evenmesh import Addresses, Agent, AsyncClient, Client, Feedback
from evenmesh.addresses import VARIABLES
from evenmesh.commands import main
from evenmesh.types.feedback import DeletedAgent
from evenmesh.wire.errors import AlreadyExists, InvalidField, NotFound
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_reranker.__main__ import RerankerService
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.settings import RerankerSettings
from tests.support import tiny_encoders, tiny_models

ANN, BOB = Agent("qa", "ann"), Agent("qa", "bob")
Output = pytest.CaptureFixture[str]


@pytest.fixture
async def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Where a reranker without a model serves; commands find it there, too."""
    settings = RerankerSettings(
        port=0,
        home=tmp_path,
        grace_s=0,
        device="cpu",
        dtype="float32",
        default_reranker="none",
        cross_encoder="",
        cpu_engine="torch",  # of tiny models
        feedback_constant_run=10**6,
    )
    service = RerankerService(settings, Telemetry.disabled())
    async with MeshServer("reranker", settings, service, telemetry=Telemetry.disabled()) as server:
        monkeypatch.setenv(VARIABLES["reranker"], server.address)
        monkeypatch.setenv("EVENMESH_HOME", str(tmp_path / "elsewhere"))
        yield server.address


def _items(count: int, agent: Agent = ANN) -> list[Feedback]:
    return [Feedback(f"query {at}", f"p{at}", at % 2, agent, ranking=(f"p{at}", "x")) for at in range(count)]


async def test_feedback_is_recorded_once_however_often_it_is_sent(address: str) -> None:
    def use() -> None:
        with Client(Addresses(reranker=address)) as mesh:
            done = mesh.record_feedback(_items(2500))
            assert (done.stored, done.duplicates, done.refused) == (2500, 0, ())
            assert len({one.id for one in done.results}) == 2500
            again = mesh.record_feedback(_items(3))
            assert (again.stored, again.duplicates) == (0, 3)
            named = replace(_items(1)[0], id="mine")
            assert mesh.record_feedback(named).stored == 1
            (refused,) = mesh.record_feedback(replace(named, usefulness=1.0)).refused
            assert isinstance(refused.error, AlreadyExists)
            exported = list(mesh.export_feedback())
            assert [one.feedback.query for one in exported[:2]] == ["query 0", "query 1"]
            assert exported[-1].feedback == named
            assert len(exported) == 2501
            assert not list(mesh.export_feedback(since=datetime.now(UTC) + timedelta(days=1)))
            assert not list(mesh.export_feedback(agent=BOB))
            assert mesh.record_feedback([]).results == ()
            with pytest.raises(InvalidField, match="must be a number"):
                mesh.record_feedback(replace(named, usefulness="much"))  # type: ignore[arg-type]

    await asyncio.to_thread(use)


async def test_an_event_loop_has_the_same(address: str, tmp_path: Path) -> None:
    plain = tiny_models.cross_encoder(tmp_path / "plain")
    store = ModelStore(tmp_path / "reranker" / "models")
    first = tiny_encoders.keep(store, plain, "first")
    second = tiny_encoders.keep(store, tiny_encoders.personal(plain, tmp_path / "p", [], seed=1), "second")
    async with AsyncClient(Addresses(reranker=address)) as mesh:
        assert (await mesh.record_feedback(_items(1001))).stored == 1001
        assert len([one async for one in mesh.export_feedback(agent=ANN)]) == 1001
        for version in (first, second):
            model = await mesh.promote_model(version)
            assert (model.version, model.serving, model.agent) == (version, True, None)
        assert dict(model.metrics) == {"utility": 0.5}
        registered = await mesh.register_agent(BOB, "answers")
        assert (registered.agent, registered.description, registered.known_to_model) == (BOB, "answers", True)
        assert [(one.agent, one.num_feedback) for one in await mesh.agents()] == [(ANN, 1001), (BOB, 0)]
        assert next(iter(await mesh.models())).version == second
        assert await mesh.models(agent=ANN) == []
        assert (await mesh.rollback_model()).version == first
        status = await mesh.training_status()
        assert (status.state, status.pending_feedback, status.trainings[0].pending_queries) == (
            "idle",
            1001,
            1001,
        )
        assert (await mesh.training_status(agent=ANN)).trainings[0].agent == ANN
        with pytest.raises(NotFound, match="there is no version 'nope'"):
            await mesh.promote_model("nope")
        assert await mesh.delete_agent(ANN) == DeletedAgent(deleted=True, num_feedback=1001, num_models=0)
        assert await mesh.delete_agent(ANN) == DeletedAgent(deleted=False, num_feedback=0, num_models=0)
        assert [one.agent for one in await mesh.agents()] == [BOB]


async def test_the_command_line(address: str, tmp_path: Path, capsys: Output) -> None:
    lines = [
        {
            "query": f"q{at}",
            "passage_id": "p",
            "usefulness": usefulness,
            "agent": {"task_id": "qa", "model_id": "ann"},
            "ranking": ["p", "r"],
        }
        for at, usefulness in enumerate([0, 1, 0.5])
    ]
    file = tmp_path / "feedback.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)))

    async def run(*arguments: str, status: int = 0) -> tuple[str, str]:
        assert await asyncio.to_thread(main, arguments) == status
        out = capsys.readouterr()
        return out.out, out.err

    unplaced = "items without a collection, from which no trainer can learn: 3\n"
    assert await run("feedback", "record", str(file)) == ("3 stored, 0 stored before\n", unplaced)
    assert json.loads((await run("feedback", "record", str(file), "--json"))[0]) == {
        "stored": 0,
        "duplicates": 3,
        "flagged": 0,
        "without_collection": 3,
        "refused": [],
    }
    placed = tmp_path / "placed.jsonl"
    placed.write_text(json.dumps({**lines[0], "collection": "c", "usefulness": 2}))
    assert "collection" not in (await run("feedback", "record", str(placed), status=1))[1]
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({**lines[0], "usefulness": 2}))
    out, err = await run("feedback", "record", str(bad), status=1)
    assert out == "0 stored, 0 stored before\n"
    assert "usefulness: must be in [0.0, 1.0], got 2.0" in err
    assert "items refused: 1 of 1" in err
    bad.write_text("{}\n")
    assert "line 1: has no 'query'" in (await run("feedback", "record", str(bad), status=1))[1]

    table = (await run("feedback", "stats"))[0].splitlines()
    assert table[1].split()[:2] == ["qa", "ann"]
    assert "0.500" in table[1]
    assert table[-1] == "idle: nothing is being trained; 3 items of feedback wait"
    reported: dict[str, Any] = json.loads((await run("feedback", "stats", "--json"))[0])
    assert (reported["agents"][0]["num_feedback"], reported["training"]["pending_feedback"]) == (3, 3)

    target = tmp_path / "out.parquet"
    assert (await run("feedback", "export", str(target)))[0].endswith("out.parquet: 3 items\n")
    rows = pq.read_table(target).to_pylist()
    assert [row["usefulness"] for row in rows] == [0.0, 1.0, 0.5]
    assert [(row["task_id"], row["model_id"], row["ranking"], row["flag"]) for row in rows] == [
        ("qa", "ann", ["p", "r"], "")
    ] * 3
    assert (await run("feedback", "record", str(target)))[0] == "0 stored, 3 stored before\n"
    assert "exists; name a new file" in (await run("feedback", "export", str(target), status=1))[1]
    nowhere = str(tmp_path / "gone" / "kept.parquet")
    assert "make it first" in (await run("feedback", "export", nowhere, status=1))[1]
    assert (
        "give both --task and --model"
        in (await run("feedback", "export", str(tmp_path / "x"), "--task", "qa", status=2))[1]
    )

    assert "bob is registered" in (await run("agents", "register", "qa", "bob", "--description", "B"))[0]
    assert [row.split()[:2] for row in (await run("agents", "list"))[0].splitlines()[1:]] == [
        ["qa", "ann"],
        ["qa", "bob"],
    ]
    gone = "qa / ann is deleted: 3 items of feedback, 0 model versions\n"
    assert (await run("agents", "delete", "qa", "ann"))[0] == gone
    assert "there is no agent qa / ann" in (await run("agents", "delete", "qa", "ann", status=1))[1]
    reported_gone = json.loads((await run("agents", "delete", "qa", "bob", "--json"))[0])
    assert reported_gone == {"deleted": True, "num_feedback": 0, "num_models": 0}
    assert "No agents yet" in (await run("agents", "list"))[0]
    assert "No learned models" in (await run("models", "list"))[0]
    assert "there is no version" in (await run("models", "promote", "nope", status=1))[1]
    version = tiny_encoders.keep(
        ModelStore(tmp_path / "reranker" / "models"), tiny_models.cross_encoder(tmp_path / "plain"), "first"
    )
    assert (await run("models", "promote", version))[0] == f"{version} serves all agents: first\n"
    (row,) = (await run("models", "list"))[0].splitlines()[1:]
    assert row.split()[:2] == [version, "yes"]
    assert "utility=0.5" in row
    assert "there is no earlier version that can be served" in (await run("models", "rollback", status=1))[1]
    assert "idle" in (await run("models", "training"))[0]
