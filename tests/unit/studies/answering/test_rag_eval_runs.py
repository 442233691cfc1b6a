"""An evaluation over clients that fail on command: order, retries, nothing twice; and its plan."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from evenmesh.generation import WrittenAnswer
from evenmesh.types.events import Degraded, Done, Event, Failed, Ranked, Retrieved
from evenmesh.types.passage import Passage
from evenmesh.types.request import Decoding
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_lab.files import Journal
from evenmesh_lab.files.answered import AnsweredRecord, TimesRecord, read_all
from evenmesh_lab.files.questions import read_question_set
from evenmesh_studies.answering import checks
from evenmesh_studies.answering.plan import AnsweringPlan, EvaluatedSet, Ranker
from evenmesh_studies.answering.run import evaluate
from evenmesh_studies.runner import StudyRunner
from tests.support import study_runs
from tests.support.study_runs import Recorder

pytestmark = pytest.mark.usefixtures("short_pauses")

POOL = (Passage("a", "nothing"), Passage("b", "It is x."), Passage("c", "x", "y"))
DONE = Done("a", "r", {"retrieve": 1.5, "rerank": 2.5}, 4.0)


@dataclass
class FakeClient:
    """Ranks the pool backwards where a reranker is named; fails as scripted, then no more."""

    failures: dict[str, list[Event | Exception]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def ask(self, question: str, **options: Any) -> AsyncIterator[Event]:
        self.asked.append((question, options))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            # Later questions are ready sooner, and must wait for their turn.
            await asyncio.sleep(0.002 * (9 - int(question)))
            if self.failures.get(question):
                failure = self.failures[question].pop(0)
                if isinstance(failure, Exception):
                    raise failure
                yield failure
            ranked = options["reranker"] != "none"
            yield Retrieved(POOL, (3.0, 2.0, 1.0), "bm25", "v1")
            yield Ranked(((2, 1, 0) if ranked else (0, 1, 2),), (), options["reranker"], "7")
            yield DONE
        finally:
            self.at_once -= 1


@dataclass
class FakeGeneration:
    """Says the ids it is shown."""

    refuses: frozenset[str] = frozenset()
    loses: list[str] = field(default_factory=list)

    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def answers(
        self, question: str, contexts: Sequence[Sequence[Passage]], *, model: str, **options: Any
    ) -> list[WrittenAnswer | Failed]:
        (shown,) = contexts
        self.asked.append((question, options))
        if question in self.refuses:
            return [Failed((0,), "INVALID_ARGUMENT", "TOO_LONG", "the question is too long", "question")]
        if question in self.loses:
            self.loses.remove(question)
            return [Failed((0,), "UNAVAILABLE", "GONE", "gone", "")]
        return [WrittenAnswer("".join(one.id for one in shown), model, "3", 12.5)]


def plan_of(path: Path, **more: Any) -> AnsweringPlan:
    options: dict[str, Any] = {
        "asked": [EvaluatedSet(read_question_set(str(path)), "wiki")],
        "retrievers": ["bm25"],
        "rerankers": ["none", "rankrag"],
        "depths": [3],
        "contexts": [1, 2],
        "models": ["m1"],
        "decoding": Decoding(num_beams=1, max_new_tokens=32),
    }
    return AnsweringPlan(**(options | more))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "toy.jsonl"
    path.write_text(
        "".join(
            json.dumps({"id": f"q{i}", "question": str(i), "answers": ["x"], "gold_passage_ids": ["a"]})
            + "\n"
            for i in range(6)
        )
    )
    return path


async def run(
    client: FakeClient, generation: FakeGeneration, plan: AnsweringPlan, folder: Path, in_flight: int = 3
) -> Recorder:
    runner = StudyRunner(plan, folder, in_flight=in_flight, retry_for_s=30.0)
    return await study_runs.run(runner, partial(evaluate, cast(Any, client), cast(Any, generation), plan))


async def test_a_question_is_ranked_once_and_answered_from_every_context(
    questions: Path, tmp_path: Path
) -> None:
    client = FakeClient()
    seen = await run(client, FakeGeneration(), plan_of(questions), tmp_path / "out")

    assert seen.written_units == list(plan_of(questions).units())
    assert client.most_at_once == 3
    assert len(client.asked) == 6 * 2
    options = client.asked[0][1]
    assert (options["depth"], options["rerank_depth"], options["k"]) == (3, 3, 3)
    assert (options["num_answers"], options["observe"], options["collection"]) == (0, False, "wiki")

    records = read_all(tmp_path / "out" / "answers.jsonl", AnsweredRecord)
    assert [(one.reranker, one.k, one.context, one.answer) for one in records[:4]] == [
        ("none", 1, ["a"], "a"),
        ("none", 2, ["a", "b"], "ab"),
        ("rankrag", 1, ["c"], "c"),
        ("rankrag", 2, ["c", "b"], "cb"),
    ]
    # The second passage retrieved holds the answer; ranked backwards the first does; gold is then the last.
    assert [(one.first_before, one.first_after, one.gold_before, one.gold_after) for one in records[1:3]] == [
        (2, 2, [1], [1]),
        (2, 1, [1], [3]),
    ]
    times = read_all(tmp_path / "out" / "times.jsonl", TimesRecord)
    assert (times[2].retrieve_ms, times[2].rerank_ms, times[2].generate_ms) == (1.5, 2.5, 12.5)


async def test_claims_and_conversations_are_asked_by_their_prompts(tmp_path: Path) -> None:
    """A turn is searched for, and read, with the turns before it; a template of the plan is for all questions."""
    path = tmp_path / "kinds.jsonl"
    turns = [{"question": "7", "answer": "yes"}]
    lines = [
        {"id": "c", "question": "1", "claim": True, "answer": "True"},
        {"id": "t", "question": "2", "answers": ["x"], "turns": turns},
        {"id": "q", "question": "3", "answers": ["x"]},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for template in (None, "mine"):
        client, generation = FakeClient(), FakeGeneration()
        plan = plan_of(path, rerankers=["none"], contexts=[1], template=template)
        for unit in plan.units():
            await evaluate(cast(Any, client), cast(Any, generation), plan, unit)
        assert [options.get("turns") for _, options in client.asked] == [None, (("7", "yes"),), None]
        assert [
            (options["template"], options["turns"], options["contextual_question"])
            for _, options in generation.asked
        ] == [
            (template or "rankrag-answer-claim", (), ""),
            (template, (("7", "yes"),), "2 7"),
            (template, (), ""),
        ]


async def test_texts_that_end_answers_are_sent_and_are_settings_of_the_run(questions: Path) -> None:
    plain = plan_of(questions)
    stopped = plan_of(questions, decoding=Decoding(num_beams=1, max_new_tokens=32, stop=("\nUser:",)))
    assert stopped.settings() == plain.settings() | {"stop": ["\nUser:"]}
    generation = FakeGeneration()
    await evaluate(cast(Any, FakeClient()), cast(Any, generation), stopped, next(iter(stopped.units())))
    assert {tuple(options["decoding"].stop) for _, options in generation.asked} == {("\nUser:",)}


async def test_what_is_written_is_not_asked_again_and_the_bytes_are_the_same(
    questions: Path, tmp_path: Path
) -> None:
    plan = plan_of(questions)
    await run(FakeClient(), FakeGeneration(), plan, tmp_path / "whole")
    with pytest.raises(MeshError):
        await run(FakeClient({"3": [InvalidField("x", "no")]}), FakeGeneration(), plan, tmp_path / "out")
    # As a kill leaves it: half a line, and times of a unit whose answers are not there.
    with (tmp_path / "out" / "answers.jsonl").open("a") as stream:
        stream.write('{"half')

    client = FakeClient()
    await run(client, FakeGeneration(), plan, tmp_path / "out")

    assert {question for question, _ in client.asked} == {"3", "4", "5"}
    for name in ("answers.jsonl", "times.jsonl", "rag.journal"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


async def test_times_that_are_there_already_are_not_written_twice(questions: Path, tmp_path: Path) -> None:
    plan, out = plan_of(questions), tmp_path / "out"
    first = next(iter(plan.units()))
    with Journal(out / "rag.journal", plan.settings()) as journal:
        journal.add(f"times {first.name}", "times.jsonl", ['{"dataset": "toy", "query_id": "q0", "retriever": "bm25", '
                    '"reranker": "none", "n": 3, "k": 1, "model": "m1"}'])  # fmt: skip

    await run(FakeClient(), FakeGeneration(), plan, out)

    keys = [(one.query_id, one.reranker, one.k) for one in read_all(out / "times.jsonl", TimesRecord)]
    assert len(keys) == len(set(keys)) == 6 * 2 * 2 - 1
    assert len(read_all(out / "answers.jsonl", AnsweredRecord)) == 6 * 2 * 2


async def test_what_passes_is_waited_for_and_what_does_not_is_recorded(
    questions: Path, tmp_path: Path
) -> None:
    client = FakeClient({"1": [Degraded("rerank", "retriever_order", "UPSTREAM_UNAVAILABLE", "away")]})
    generation = FakeGeneration(refuses=frozenset({"2"}), loses=["4"])

    seen = await run(client, generation, plan_of(questions), tmp_path / "out", in_flight=1)

    assert sorted(seen.pauses) == ["NO_ANSWER", "UPSTREAM_UNAVAILABLE"]
    records = read_all(tmp_path / "out" / "answers.jsonl", AnsweredRecord)
    assert {one.query_id for one in records if one.answer is None} == {"q2"}
    assert next(one.failure for one in records if one.query_id == "q2") == (
        "INVALID_ARGUMENT: the question is too long"
    )
    assert len(records) == 6 * 2 * 2


def test_without_a_reranker_only_the_largest_pool_is_asked(questions: Path) -> None:
    plan = plan_of(questions, depths=[10, 20], contexts=[5])
    assert plan.rankers == [
        Ranker("bm25", "none", 20),
        Ranker("bm25", "rankrag", 10),
        Ranker("bm25", "rankrag", 20),
    ]


def test_all_problems_of_a_plan_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    path.write_text(
        '{"id": "q1", "question": "?", "answers": ["x"]}\n'
        '{"id": "q1", "question": "?", "answers": ["x"]}\n'
        '{"id": "q2", "question": "?"}\n'
        f'{{"id": "q3", "question": "{"long " * 2000}", "answers": ["x"]}}\n'
    )
    plan = plan_of(path, depths=[3, 101], contexts=[5, 5], retrievers=["bm25", "bm25"])

    found = checks.problems(plan)

    assert [one.removeprefix(f"{path}") for one in found] == [
        ":2: repeats the query 'q1' of line 1",
        ": these questions cannot be judged: they have no references and no options, and are not marked "
        "unanswerable: q2",
        ": these questions with their options exceed 8,192 bytes: q3",
        "--n 101: allowed: 1 to 100",
        "--k: given twice: 5",
        "--k 5: more passages than --n 3 retrieves",
        "--k 5: more passages than --n 3 retrieves",
        "--retriever: given twice: bm25",
    ]
