"""The study of RankRAG's training data: variants, measures and verdicts by hand, and its page by its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("bm25s")
pytest.importorskip("torch")

from benchmarks import csv_rows
from benchmarks.ablation_study import asking, measures, records, tables
from benchmarks.ablation_study.asking import Answering, Found
from benchmarks.ablation_study.measures import CLAIMS, RECALL, Claim
from benchmarks.ablation_study.sets import SETS, Asked, Question
from benchmarks.ablation_study.variants import BEGINNING, SEEDS, VARIANTS
from benchmarks.group_means import mean_of_means
from benchmarks.page import placed
from benchmarks.shared_data import folder, rows
from evenmesh_generator.domain import Passage
from evenmesh_lab.files.plans import read_plan
from evenmesh_training.rankrag.data.examples import Kind


def test_variants_leave_out_what_their_names_say() -> None:
    kinds = {name: set(one.examples) for name, one in VARIANTS.items()}
    assert kinds["full"] == set(Kind) - {Kind.SFT}
    assert kinds["without-rqa"] == kinds["full"] - {Kind.RETRIEVAL_AUGMENTED_QA}
    assert kinds["without-rar"] == kinds["full"] - {Kind.RETRIEVAL_AUGMENTED_RANKING}
    assert not any(kind.ranks for kind in kinds["without-ranking"] | kinds["raft"] | kinds["pairs-0"])
    of_second = [VARIANTS[name] for name in ("full", "without-rqa", "without-rar", "without-ranking", "raft")]
    assert {sum(one.examples.values()) for one in of_second} == {4_800}
    assert {one.start for one in of_second} == {BEGINNING}
    for count in (5_000, 10_000, 50_000):
        extra = VARIANTS[f"pairs-{count}"].examples[Kind.CONTEXT_RANKING]
        assert extra == count
        assert sum(VARIANTS[f"pairs-{count}"].examples.values()) - extra == 2_400


@pytest.mark.parametrize("name", VARIANTS)
def test_a_recipe_has_a_variants_examples_in_their_shares(name: str) -> None:
    variant = VARIANTS[name]
    recipe = variant.recipe(31)
    stage = recipe.stage(2)
    assert stage.kinds_apart
    total = sum(variant.examples.values())
    assert total <= stage.steps * stage.batch_size < total + stage.batch_size
    ratios = sum(one.ratio for one in recipe.source)
    for kind, count in variant.examples.items():
        share = sum(one.ratio for one in recipe.source if one.kind is kind) / ratios
        assert share == pytest.approx(count / total)
    assert recipe.context.separate is (name == "raft")


QUESTIONS = [
    Question("q1", "who?", ("Ada",), {"p1"}),
    Question("q2", "where?", ("Bern",), {"p9"}),
]
FOUND = [[Passage(f"p{at}", "", "") for at in range(7)] for _ in QUESTIONS]


def _reverse(questions: Sequence[Question], found: Found) -> tuple[list[list[float]], Answering | None]:
    """Ranks the other way round, and answers Ada from a context with the passage p1."""

    def answer(kept: Sequence[Sequence[int]]) -> list[str]:
        return ["Ada" if 1 in some else "Ada Lovelace" for some in kept]

    return [[float(at) for at in range(len(some))] for some in found], answer


def test_places_and_answers_are_of_the_first_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asked, "found", lambda _: FOUND)
    monkeypatch.setattr(asking, "SETS", {"set": lambda: Asked(QUESTIONS, [])})
    one, other = asking.ask(_reverse)
    assert one == {
        "data": "set",
        "question": "q1",
        "found": 1,
        "ranked": 5,  # of seven, the other way round
        "found_exact": True,
        "found_f1": 1.0,
        "ranked_exact": False,  # p1 is not among its first five
        "ranked_f1": pytest.approx(2 / 3),
    }
    assert (other["found"], other["ranked"], other["found_exact"]) == (-1, -1, False)
    ranks = next(asking.ask(lambda questions, found: (_reverse(questions, found)[0], None)))
    assert ranks == {"data": "set", "question": "q1", "found": 1, "ranked": 5}


def _rows(right: Sequence[int], ranked: int = 0) -> list[dict[str, Any]]:
    """Of each data set forty questions, so many of which are right."""
    return [
        {
            "data": name,
            "question": f"{number:02}",
            "found": 6,
            "ranked": ranked,
            "found_exact": False,
            "found_f1": 0.0,
            "ranked_exact": number < count,
            "ranked_f1": float(number < count),
        }
        for name, count in zip(SETS, right, strict=True)
        for number in range(40)
    ]


def test_a_claim_is_decided_by_the_mean_of_the_sets_over_common_seeds() -> None:
    claim = Claim("A", ("one", True), ("other", True))
    asked = {
        "one": {31: _rows([20, 20, 20, 20, 20]), 32: _rows([30, 20, 20, 20, 20]), 33: _rows([0] * 5)},
        "other": {31: _rows([10, 10, 10, 10, 10]), 32: _rows([10, 10, 10, 10, 10])},
    }
    found = measures.compared(asked, claim)
    assert [row["data"] for row in found] == [*SETS, "mean"]
    # In the first set a quarter more with one seed, and a half with the other.
    assert [row["difference"] for row in found] == pytest.approx([0.375, 0.25, 0.25, 0.25, 0.25, 0.275])
    assert found[-1]["seeds"] == 2
    assert found[-1]["by_seed"] == "0.2500 0.3000"
    assert found[-1]["low"] < 0.275 < found[-1]["high"]
    assert measures.verdict(claim, found[-1]) == "holds"
    assert measures.compared({"one": asked["one"]}, claim) == []


def test_the_interval_of_a_mean_of_means_is_that_of_its_variance() -> None:
    rng = np.random.default_rng(3)
    values = [rng.normal(mean, 1.0, 400) for mean in (0.1, 0.3)]
    mean, low, high = mean_of_means(values)
    assert mean == pytest.approx(np.mean([one.mean() for one in values]))
    error = np.sqrt(sum(one.var() / 400 for one in values)) / 2
    assert (mean - low, high - mean) == (
        pytest.approx(1.96 * error, rel=0.1),
        pytest.approx(1.96 * error, rel=0.1),
    )


@pytest.mark.parametrize(
    ("low", "high", "gain", "no_worse"),
    [
        (0.001, 0.03, "holds", "holds"),
        (-0.005, 0.02, "open", "holds"),
        (-0.02, 0.02, "open", "open"),
        (-0.02, 0.005, "refuted", "open"),
        (-0.03, -0.001, "refuted", "refuted"),
    ],
)
def test_verdicts_are_those_of_the_plan(low: float, high: float, gain: str, no_worse: str) -> None:
    row = {"low": str(low), "high": str(high)}
    assert measures.verdict(Claim("A", ("one", True), ("other", True)), row) == gain
    assert measures.verdict(Claim("A", ("one", True), ("other", True), gain=False), row) == no_worse


def test_every_claim_of_the_plan_is_compared() -> None:
    plan = read_plan(records.OUT / "plan.toml")
    assert [one.name for one in plan.hypotheses] == [one.name for one in CLAIMS]
    assert {name for one in CLAIMS for name, _ in (one.one, one.other)} <= VARIANTS.keys()
    assert [one.name for one in plan.data] == list(SETS)
    assert {one.measure for one in CLAIMS if one.name in ("A7", "A8")} == {RECALL}


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    assert records.read("full", 31, tmp_path) == []
    known = _rows([20] * 5)
    records.write("full", 31, known, tmp_path)
    assert records.read("full", 31, tmp_path) == known
    ranks = {"data": "squad-open", "question": "q", "found": 1, "ranked": -1}
    records.write("expert", 31, [ranks], tmp_path)
    assert records.read("expert", 31, tmp_path) == [
        ranks | dict.fromkeys(("found_exact", "found_f1", "ranked_exact", "ranked_f1"))
    ]


def test_no_question_that_is_asked_was_trained_on() -> None:
    try:
        trained = {
            row["question"].casefold() for row in rows(folder("squad-open") / "questions.train.jsonl.gz")
        }
        split = {row["id"]: row["split"] for row in rows(folder("wiki-multitask") / "tasks.jsonl.gz")}
        qed = rows(folder("nq-passages") / "questions.jsonl.gz")
        asked = {name: read() for name, read in SETS.items()}
    except FileNotFoundError as error:
        pytest.skip(str(error))
    trained |= {row["question"].casefold() for row in qed if split.get(row["id"]) == "train"}
    assert len(trained) > 85_000
    for name, one in asked.items():
        assert len({question.id for question in one.questions}) == len(one.questions) > 150, name
        assert not {question.text.casefold() for question in one.questions} & trained, name


def test_the_page_and_its_numbers_are_those_of_the_records(tmp_path: Path) -> None:
    tables.summarize(tmp_path)
    for path in tmp_path.glob("*.csv"):
        assert csv_rows.read(path) == csv_rows.read(records.OUT / path.name), path.name
    page = records.OUT.with_suffix(".md").read_text(encoding="utf-8")
    assert placed(page, tables.tables()) == page
    assert set(tables.asked()) <= VARIANTS.keys()
    assert all(seed in SEEDS for some in tables.asked().values() for seed in some)
