"""A study of an ensemble over a scripted mesh: order, splits, retries, and nothing half."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from evenmesh import Passage
from evenmesh.types.events import Answer, Cost, Degraded, Done, Event, Failed, Ranked, Retrieved, Vote
from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_lab.files import FileError, read_ensemble, read_queries
from evenmesh_studies.ensembles.plan import Dataset, EnsemblePlan, records_name
from evenmesh_studies.ensembles.pool import Pool
from evenmesh_studies.ensembles.run import answer as run_member_answers
from evenmesh_studies.runner import StudyRunner, stem
from evenmesh_studies.runner.shards import read_stored
from tests.support import study_runs
from tests.support.study_runs import Recorder

pytestmark = pytest.mark.usefixtures("short_pauses")

DONE = Done("a", "r", {}, 1.0)
POOL = Pool(("A@1", "B@2", "ReFree", "A@2@CP"), "rankrag")


def answer(member: str, text: str = "x") -> Answer:
    cost = Cost(0.0, 0.0, 0.0, 0, 0, 1)
    return Answer(text, (0,), (), "stop", 1, 1, 0.0, "m", "7", "pointer", 0, 0, 0, cost, member)


def whole(question: str, attempt: int) -> list[Event | Exception]:
    """B is there first; its passages come before A's, and one of them is A's too."""
    return [
        Retrieved((Passage("p2", "two"), Passage("p1", "one", "One")), (1.0, 0.5), "B@2", "B=v1"),
        Ranked(((0, 1),), (), "none", "", "B@2"),
        answer("B@2", f"b{question}"),
        Retrieved((Passage("p3", "three"),), (1.0,), "A@1", "A=v1"),
        Ranked(((1,),), (), "rankrag", "3", "A@1"),
        answer("A@1", f"a{question}"),
        Ranked(((1, 2),), (), "none", "", "A@2@CP"),
        answer("ReFree", "free"),
        answer("A@2@CP", "short"),
        Vote("x", 4, 0, may_change=False, member="A@1", final=True),
        DONE,
    ]


@dataclass
class FakeClient:
    script: Callable[[str, int], list[Event | Exception]] = whole
    asked: list[str] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, question: str, **options: Any) -> AsyncIterator[Event]:
        self.asked.append(question)
        self.options.append(options)
        await asyncio.sleep(0.002 * (9 - int(question)))
        for event in self.script(question, self.asked.count(question)):
            if isinstance(event, Exception):
                raise event
            yield event


@pytest.fixture
def plan(tmp_path: Path) -> EnsemblePlan:
    datasets = []
    for name, count in (("one", 6), ("two", 3)):
        path = tmp_path / f"{name}.jsonl"
        lines = [{"query_id": f"{name}{i}", "question": str(i), "references": ["x"]} for i in range(count)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        datasets.append(Dataset(name, read_queries(path)))
    return EnsemblePlan(datasets, POOL, ["m"], versions={"A@1": "A=v1", "B@2": "B=v1"})


def run(client: FakeClient, plan: EnsemblePlan, folder: Path, in_flight: int = 2) -> Recorder:
    runner = StudyRunner(plan, folder, in_flight=in_flight)
    return asyncio.run(study_runs.run(runner, partial(run_member_answers, cast(Any, client), plan, folder)))


def test_data_sets_take_turns_in_an_order_that_a_larger_sample_only_adds_to(plan: EnsemblePlan) -> None:
    names = [unit.dataset for unit in plan.units()]
    assert names == ["one", "two"] * 3 + ["one"] * 3
    asked = [unit.name for unit in plan.units()]
    assert [unit.name for unit in replace(plan, sample=2).units()] == asked[:4]
    assert [unit.name for unit in replace(plan, seed=1).units()] != asked
    assert len(set(asked)) == 9
    assert replace(plan, sample=2).settings() == plan.settings()
    assert replace(plan, train_share=0.1).settings() == plan.settings()
    assert replace(plan, seed=1).settings() != plan.settings()


def test_a_question_stays_in_its_split_whatever_else_is_asked(plan: EnsemblePlan) -> None:
    queries = [query for one in plan.datasets for query in one.queries.queries]
    half = {query.query_id for query in queries if plan.is_training(query)}
    most = {query.query_id for query in queries if replace(plan, train_share=0.9).is_training(query)}
    assert half < most
    assert half == {query.query_id for query in queries if replace(plan, sample=2).is_training(query)}
    assert not any(replace(plan, train_share=1e-9).is_training(query) for query in queries)


def test_answers_are_written_in_the_pool_s_order_whatever_order_they_came_in(
    plan: EnsemblePlan, tmp_path: Path
) -> None:
    client = FakeClient()
    assert run(client, plan, tmp_path, in_flight=3).written_units == list(plan.units())
    found = read_ensemble([tmp_path / "one.m.jsonl"])
    assert found.retrievers == POOL.members
    first = found.questions[0]
    number = first.query_id.removeprefix("one")
    assert [one.answer for one in first.answers] == [f"a{number}", f"b{number}", "free", "short"]
    assert [one.context for one in first.answers] == ["One\none", "two\n\nOne\none", "", None]
    assert (first.question, first.references) == (number, ("x",))
    asked = client.options[0]
    assert (asked["ensemble"], asked["reranker"]) == (list(POOL.members), "rankrag")
    assert not asked["observe"]
    stored = read_stored(tmp_path, "eor")
    assert stored.facts == {
        "reranker of A@1": "rankrag 3",
        "version of m": "7",
        "engine of m": "pointer",
    }
    assert stored.done == {unit.name for unit in plan.units()}


def test_a_run_that_was_stopped_writes_the_same_bytes(plan: EnsemblePlan, tmp_path: Path) -> None:
    run(FakeClient(), plan, tmp_path / "whole")

    def stops(question: str, attempt: int) -> list[Event | Exception]:
        return whole(question, attempt) if question in "01" else [MeshError(_invalid(), "NO", "no")]

    for _ in range(2):
        with pytest.raises(MeshError):
            run(FakeClient(stops), plan, tmp_path / "parts")
    client = FakeClient()
    run(client, plan, tmp_path / "parts", in_flight=4)
    assert 0 < len(client.asked) <= 9
    for name in ("eor.journal", "one.m.jsonl", "two.m.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    "passing",
    [
        [Unavailable("AWAY", "away")],
        [Degraded("rerank", "retriever_order", "UPSTREAM_UNAVAILABLE", "away"), *whole("0", 1)],
        [*whole("0", 1)[:-3], Failed((0,), "UNAVAILABLE", "AWAY", "away", "", "A@2@CP"), DONE],
        whole("0", 1)[:-1],
        [*whole("0", 1)[:-3], DONE],
    ],
    ids=["error", "degraded", "a member fails", "no end", "a member is missing"],
)
def test_a_transient_failure_repeats_the_whole_question(
    plan: EnsemblePlan, tmp_path: Path, passing: list[Event | Exception]
) -> None:
    def script(question: str, attempt: int) -> list[Event | Exception]:
        return passing if attempt == 1 else whole(question, attempt)

    small = replace(plan, datasets=plan.datasets[1:], sample=1)
    seen = run(FakeClient(script), small, tmp_path)
    assert (len(seen.written_units), len(seen.pauses)) == (1, 1)
    assert len(read_ensemble([tmp_path / "two.m.jsonl"]).questions[0].answers) == 4


def test_a_question_that_some_retriever_has_no_answer_to_is_left_out_by_name(
    plan: EnsemblePlan, tmp_path: Path
) -> None:
    def script(question: str, attempt: int) -> list[Event | Exception]:
        refused = Failed((0,), "INVALID_ARGUMENT", "TOO_LONG", "too long", "", "B@2")
        return [refused if isinstance(one, Answer) and one.member == "B@2" else one for one in whole("0", 1)]

    small = replace(plan, datasets=plan.datasets[1:], sample=1)
    (note,) = run(FakeClient(script), small, tmp_path).notes
    assert note.startswith("'two")
    assert note.endswith("of two is left out: m cannot answer it with B@2")
    assert not (tmp_path / "two.m.jsonl").exists()


def test_another_index_or_model_than_before_ends_the_run(plan: EnsemblePlan, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"the index of B@2 was 'B=v0' and is 'B=v1' now"):
        run(FakeClient(), replace(plan, versions={"B@2": "B=v0"}), tmp_path / "index")

    def script(question: str, attempt: int) -> list[Event | Exception]:
        events = whole(question, attempt)
        if len(read_stored(tmp_path / "model", "eor").done) < 2:
            return events
        return [replace(one, model_version="8") if isinstance(one, Answer) else one for one in events]

    with pytest.raises(FileError, match="version of m was '7' and is '8' now"):
        run(FakeClient(script), plan, tmp_path / "model", in_flight=1)


def test_a_report_is_of_the_questions_that_were_asked(plan: EnsemblePlan, tmp_path: Path) -> None:
    run(FakeClient(), plan, tmp_path)
    stored = read_stored(tmp_path, "eor")
    assert plan.changed_datasets(stored) == []
    path = plan.datasets[1].queries.path
    path.write_text('{"query_id": "q", "question": "?", "references": ["x"]}\n')
    assert plan.changed_datasets(stored) == [f"{path}: the run was not asked these questions as 'two'"]
    (tmp_path / "eor.journal").write_text("[]\n")
    with pytest.raises(FileError, match="is not a line of a journal"):
        read_stored(tmp_path, "eor")
    with pytest.raises(FileError, match="No such file"):
        read_stored(tmp_path / "none", "eor")


def test_names_lead_to_no_other_folder() -> None:
    assert records_name("../a", "b/c") == "_a.b_c"
    assert stem("...") == "unnamed"


def _invalid() -> Any:
    import grpc

    return grpc.StatusCode.INVALID_ARGUMENT
