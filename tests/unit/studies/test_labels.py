"""Utility labels over scripted answers: algorithm 1, pools, retries, and a run that resumes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from evenmesh import AskResult, Collection, Passage, Retrieved
from evenmesh.generation import WrittenAnswer
from evenmesh.inventory import GeneratorModel
from evenmesh.types.events import Failed
from evenmesh.wire.errors import InvalidField, MeshError, Unavailable
from evenmesh_lab.files import read_gains, read_labels, read_queries, write_labels, write_qrels
from evenmesh_studies import labels as labelling
from evenmesh_studies.labels import LabelPlan, label
from evenmesh_studies.runner import WHOLE, Shard, StudyRunner
from tests.support.study_runs import Recorder, run

pytestmark = pytest.mark.usefixtures("short_pauses")


@dataclass
class FakeMesh:
    """Finds passages and answers with the text of the only one; from memory with ``memory``."""

    memory: str = "wrong"
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)
    failing: list[MeshError | Failed] = field(default_factory=list)
    refuses: str = ""

    async def answer(self, question: str, **options: Any) -> AskResult:
        self.searched.append(options["retriever"])
        names = {"bm25": "abc", "dense": "cd"}[options["retriever"]]
        passages = tuple(
            Passage(name, f"text {name}", attributes={"provider": name.upper()}) for name in names
        )
        return AskResult(question, retrieved=Retrieved(passages, (1.0,) * len(names), "x", "v1"))

    async def answers(
        self, question: str, contexts: Sequence[Sequence[Passage]], **options: Any
    ) -> list[WrittenAnswer | Failed]:
        if self.failing and isinstance(self.failing[0], MeshError):
            raise self.failing.pop(0)
        found: list[WrittenAnswer | Failed] = []
        for place, passages in enumerate(contexts):
            self.asked.append((question, tuple(one.id for one in passages)))
            if self.failing and isinstance(self.failing[0], Failed):
                found.append(self.failing.pop(0))  # type: ignore[arg-type]
            elif passages and passages[0].id == self.refuses:
                found.append(Failed((place,), "INVALID_ARGUMENT", "TOO_LONG", "too long", ""))
            else:
                text = passages[0].text if passages else self.memory
                found.append(WrittenAnswer(text, "m1", "7"))
        return found


@pytest.fixture
def plan(tmp_path: Path) -> LabelPlan:
    queries = tmp_path / "q.jsonl"
    own = [{"id": "own1", "text": "right"}, {"id": "own2", "text": "no"}]
    lines = [
        {"query_id": "q1", "question": "Which?", "references": ["text b", "text d"]},
        {"query_id": "q2", "question": "Own?", "references": ["right"], "passages": own},
    ]
    queries.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return LabelPlan(
        read_queries(queries), ["m1"], retrievers=["bm25", "dense"], metric="exact_match", batch=2
    )


async def _run(
    mesh: FakeMesh, plan: LabelPlan, folder: Path, retry_for_s: float = 30.0, shard: Shard = WHOLE
) -> Recorder:
    return await run(
        StudyRunner(plan, folder, shard, retry_for_s=retry_for_s),
        partial(label, cast(Any, mesh), cast(Any, mesh), plan),
    )


async def test_useful_is_what_makes_the_answer_better(plan: LabelPlan, tmp_path: Path) -> None:
    mesh = FakeMesh()
    recorder = await _run(mesh, plan, tmp_path / "out")

    assert recorder.written_units == list(plan.units())
    assert recorder.notes == []
    gains = read_gains(tmp_path / "out" / "m1.gains.jsonl")
    assert [(one.query_id, one.passage_id, one.baseline, one.utility, one.useful) for one in gains] == [
        ("q1", "a", 0.0, 0.0, False),
        ("q1", "b", 0.0, 1.0, True),
        ("q1", "c", 0.0, 0.0, False),
        ("q1", "d", 0.0, 1.0, True),
        ("q2", "own1", 0.0, 1.0, True),
        ("q2", "own2", 0.0, 0.0, False),
    ]
    assert gains[0].provider == "A"
    # Once without passages, and once with each alone.
    assert sorted(ids for question, ids in mesh.asked if question == "Which?") == [
        (),
        ("a",),
        ("b",),
        ("c",),
        ("d",),
    ]
    assert sorted(mesh.searched) == ["bm25", "dense"]


async def test_nothing_gains_where_memory_is_right(plan: LabelPlan, tmp_path: Path) -> None:
    await _run(FakeMesh(memory="text b"), plan, tmp_path / "out")
    gains = read_gains(tmp_path / "out" / "m1.gains.jsonl")
    assert [one.useful for one in gains if one.query_id == "q1"] == [False] * 4
    assert {one.baseline for one in gains if one.query_id == "q1"} == {1.0}


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Unavailable("AWAY", "away"), "AWAY"),
        (Failed((0,), "RESOURCE_EXHAUSTED", "OVERLOADED", "full", ""), "NO_ANSWER"),
    ],
    ids=["call", "item"],
)
async def test_what_passes_is_waited_for_and_nothing_half_is_written(
    plan: LabelPlan, tmp_path: Path, failure: MeshError | Failed, reason: str
) -> None:
    seen = await _run(FakeMesh(failing=[failure]), plan, tmp_path / "out")
    assert seen.written_units == list(plan.units())
    assert seen.pauses == [reason]
    assert len(read_gains(tmp_path / "out" / "m1.gains.jsonl")) == 6


async def test_what_is_refused_for_good_has_no_label(plan: LabelPlan, tmp_path: Path) -> None:
    seen = await _run(FakeMesh(refuses="b"), plan, tmp_path / "out")
    assert seen.notes == ["query 'q1' for m1: 1 of 4 passages could not be answered from; they have no label"]
    gains = read_gains(tmp_path / "out" / "m1.gains.jsonl")
    assert [one.useful for one in gains][:4] == [False, None, False, True]
    write_qrels(gains, tmp_path / "l.qrels")
    write_labels(gains, tmp_path / "l.parquet")
    for path in (tmp_path / "l.qrels", tmp_path / "l.parquet"):
        assert read_labels(path).grades == {
            "q1": {"a": 0.0, "c": 0.0, "d": 1.0},
            "q2": {"own1": 1.0, "own2": 0.0},
        }
    assert read_labels(tmp_path / "l.parquet").attributes["provider"]["a"] == "A"


async def test_what_is_labelled_is_not_asked_again(plan: LabelPlan, tmp_path: Path) -> None:
    class Dies(FakeMesh):
        async def answers(self, question: str, contexts: Any, **options: Any) -> list[WrittenAnswer | Failed]:
            if question == "Own?":
                raise MeshError(Unavailable("X", "x").code, "X", "dies")
            return await super().answers(question, contexts, **options)

    with pytest.raises(MeshError, match="'q2' for m1"):
        await _run(Dies(), plan, tmp_path / "out", retry_for_s=0.0)
    mesh = FakeMesh()
    recorder = await _run(mesh, plan, tmp_path / "out")
    assert [unit.query.query_id for unit in recorder.written_units] == ["q2"]
    assert {question for question, _ in mesh.asked} == {"Own?"}
    await _run(FakeMesh(), plan, tmp_path / "whole")
    for name in ("label.journal", "m1.gains.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


async def test_shards_are_labelled_as_the_whole(plan: LabelPlan, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    await _run(FakeMesh(), plan, whole)
    for place in (1, 0):
        await _run(FakeMesh(), plan, parts, shard=Shard(place, 2))
    runner = StudyRunner(plan, parts, Shard(0, 2))
    assert runner.missing(runner.stored()) == 0
    files = [parts / f"m1.gains-{place}-of-2.jsonl" for place in range(2)]
    assert labelling.gains(plan, files) == labelling.gains(plan, [whole / "m1.gains.jsonl"])


@dataclass
class FakeClient:
    """A mesh whose collection is half embedded, and which has no retriever but bm25."""

    addresses: str = ""

    def answer(self, question: str, **options: Any) -> AskResult:
        if options["retriever"] != "bm25":
            raise InvalidField("retriever", f"there is no {options['retriever']!r}")
        return AskResult(question, retrieved=Retrieved((), (), "bm25", "v1"))

    def collections(self) -> list[Collection]:
        made = datetime(2026, 11, 22, tzinfo=UTC)
        return [Collection("c", "v1", 9, 0, "encoder", "unicode", "", made, embedded=0.5)]


def test_all_problems_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelling, "models", lambda _: [GeneratorModel("m1", "float32")])
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"query_id": "q1", "question": "Which?", "references": ["x"]}\n'
        '{"query_id": "q1", "question": "Which?", "references": ["x"]}\n'
        '{"query_id": "q2", "question": "Which?"}\n'
    )
    plan = LabelPlan(
        read_queries(path), ["m1", "m1", "m2"], retrievers=["bm25", "bm25", "none-such"], metric="luck"
    )
    found = labelling.check(plan, FakeClient(), ["--shard 2/2: no"]).problems  # type: ignore[arg-type]
    assert [one.removeprefix(f"{path}") for one in found if "luck" not in one] == [
        "--shard 2/2: no",
        ":2: repeats the query 'q1' of line 1",
        ": these queries have no references to score answers against: q2",
        "--retriever: given twice: bm25",
        "--model: given twice: m1",
        "--model m2: there is no such model; there are m1",
        "none-such: retriever: there is no 'none-such'",
        "collection 'c': 50.0% of its passages have vectors; results change until all have; "
        "`evenmesh collections` shows progress",
    ]
    assert any(one.startswith("--metric luck: allowed: ") for one in found)
