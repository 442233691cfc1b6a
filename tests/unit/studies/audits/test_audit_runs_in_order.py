"""Audits over a client that fails on command: order, retries, and nothing half."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from evenmesh.types.audit import AuditEvent, AuditSample, AuditSettled
from evenmesh.types.events import Degraded, Done, Failed
from evenmesh.wire.errors import InvalidField, MeshError, Unavailable
from evenmesh_lab.files import FileError, read_labels, read_queries
from evenmesh_studies.audits.plan import AuditPlan, RankingSystem
from evenmesh_studies.audits.run import audit
from evenmesh_studies.runner import StudyRunner
from tests.support.study_runs import Recorder, run

pytestmark = pytest.mark.usefixtures("short_pauses")

DONE = Done("a", "r", {}, 1.0)


def settled(version: str = "v1") -> AuditSettled:
    return AuditSettled(("a",), ("",), "bm25", version, "none", "", 1)


def sample(number: int = 0, failure: Failed | None = None) -> AuditSample:
    answer = None if failure else "x"
    return AuditSample("sampled", 1.0, number, ("a",), answer, None, -0.1, failure, "m1", "7")


@dataclass
class FakeClient:
    """Audits by a script; counts how many run at a time."""

    script: Callable[[str, int], list[AuditEvent | Exception]] = lambda _question, _attempt: [
        settled(),
        sample(),
        DONE,
    ]
    asked: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def audit(self, question: str, **options: Any) -> AsyncIterator[AuditEvent]:
        self.asked.append(question)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            # Later questions are ready sooner, and must wait for their turn.
            await asyncio.sleep(0.002 * (9 - int(question)))
            for event in self.script(question, self.asked.count(question)):
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.at_once -= 1


@pytest.fixture
def plan(tmp_path: Path) -> AuditPlan:
    queries, labels = tmp_path / "q.jsonl", tmp_path / "l.qrels"
    queries.write_text(
        "".join(
            json.dumps({"query_id": f"q{i}", "question": str(i), "references": ["x"]}) + "\n"
            for i in range(9)
        )
    )
    labels.write_text("".join(f"q{i} 0 a 1\n" for i in range(9)))
    return AuditPlan(read_queries(queries), read_labels(labels), [RankingSystem("bm25")], ["m1"])


async def _run(client: FakeClient, plan: AuditPlan, folder: Path, retry_for_s: float = 30.0) -> Recorder:
    runner = StudyRunner(plan, folder, in_flight=3, retry_for_s=retry_for_s)
    return await run(runner, partial(audit, cast(Any, client), plan))


def _names(recorder: Recorder) -> list[str]:
    return [unit.query.query_id for unit in recorder.written_units]


def _written(folder: Path) -> list[str]:
    return [json.loads(line)["query_id"] for line in (folder / "m1.jsonl").read_text().splitlines()]


async def test_units_are_written_in_order_and_few_run_at_a_time(plan: AuditPlan, tmp_path: Path) -> None:
    client = FakeClient()
    assert _names(await _run(client, plan, tmp_path / "out")) == [f"q{i}" for i in range(9)]
    assert _written(tmp_path / "out") == [f"q{i}" for i in range(9)]
    assert client.most_at_once == 3


async def test_what_is_written_is_not_asked_again(plan: AuditPlan, tmp_path: Path) -> None:
    def dies(question: str, attempt: int) -> list[AuditEvent | Exception]:
        return [InvalidField("x", "no")] if question == "4" else [settled(), sample(), DONE]

    with pytest.raises(MeshError) as caught:
        await _run(FakeClient(dies), plan, tmp_path / "out")
    assert "'q4' with bm25 and m1" in caught.value.message
    assert _written(tmp_path / "out") == ["q0", "q1", "q2", "q3"]
    client = FakeClient()
    await _run(client, plan, tmp_path / "out")
    assert sorted(client.asked) == ["4", "5", "6", "7", "8"]
    assert _written(tmp_path / "out") == [f"q{i}" for i in range(9)]


@pytest.mark.parametrize(
    "failing",
    [
        [Unavailable("UNREACHABLE", "away")],
        [settled(), sample(), Unavailable("UNREACHABLE", "away")],
        [
            settled(),
            sample(),
            sample(1, Failed((1,), "UNAVAILABLE", "UPSTREAM_UNAVAILABLE", "away", "")),
            DONE,
        ],
        [settled(), Degraded("rerank", "retriever_order", "BUDGET_EXCEEDED", "slow"), sample(), DONE],
        [settled(), sample()],
    ],
    ids=["away", "broken", "unanswered", "degraded", "cut off"],
)
async def test_what_passes_is_waited_for_and_nothing_half_is_written(
    plan: AuditPlan, tmp_path: Path, failing: list[AuditEvent | Exception]
) -> None:
    def once(question: str, attempt: int) -> list[AuditEvent | Exception]:
        return failing if question == "2" and attempt < 3 else [settled(), sample(), DONE]

    seen = await _run(FakeClient(once), plan, tmp_path / "out")
    assert _names(seen) == [f"q{i}" for i in range(9)]
    assert len(seen.pauses) == 2
    assert _written(tmp_path / "out") == [f"q{i}" for i in range(9)]


async def test_retries_end(plan: AuditPlan, tmp_path: Path) -> None:
    client = FakeClient(lambda _question, _attempt: [Unavailable("UNREACHABLE", "away")])
    with pytest.raises(MeshError) as caught:
        await _run(client, plan, tmp_path / "out", retry_for_s=0.01)
    assert caught.value.reason == "UNREACHABLE"
    assert client.at_once == 0


async def test_what_no_waiting_mends_is_written_as_unanswered(plan: AuditPlan, tmp_path: Path) -> None:
    refused = sample(1, Failed((1,), "INVALID_ARGUMENT", "TOO_LONG", "too long", ""))
    client = FakeClient(lambda _question, _attempt: [settled(), sample(), refused, DONE])
    await _run(client, plan, tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out" / "m1.jsonl").read_text().splitlines()]
    assert [line.get("answer") for line in lines[:2]] == ["x", None]


async def test_an_index_that_changes_in_the_middle_ends_the_run(plan: AuditPlan, tmp_path: Path) -> None:
    def changes(question: str, attempt: int) -> list[AuditEvent | Exception]:
        return [settled("v1" if int(question) < 5 else "v2"), sample(), DONE]

    with pytest.raises(FileError, match="index of bm25 was 'v1' and is 'v2' now"):
        await _run(FakeClient(changes), plan, tmp_path / "out")
    assert _written(tmp_path / "out") == [f"q{i}" for i in range(5)]
