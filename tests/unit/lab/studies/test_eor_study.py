"""The EoR study on answers of one letter, whose votes can be counted by hand; x is right."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from evenmesh_core.arrays import FloatArray
from evenmesh_core.errors import InvalidInput
from evenmesh_lab import figures
from evenmesh_lab.files import Ensemble, EnsembleAnswer, EnsembleQuestion
from evenmesh_lab.reports import as_json, write_csv
from evenmesh_lab.similarities import Models, load
from evenmesh_lab.similarities.similarity import Check, unchecked
from evenmesh_lab.similarities.strings import TokenF1
from evenmesh_lab.studies import Bootstrap, EorStudy, eor, statement, vote

QUICK = Bootstrap(num_resamples=100)
F1 = vote.Voting((load("token_f1", Models()),))


def question(query: str, *answers: str) -> EnsembleQuestion:
    contexts = ("the x", "", None)
    made = tuple(
        EnsembleAnswer(answer, None, context) for answer, context in zip(answers, contexts, strict=True)
    )
    return EnsembleQuestion(query, None, "", ("x",), made, Path("e.jsonl"), 1)


def ensemble(*questions: EnsembleQuestion) -> Ensemble:
    return Ensemble(("r1", "r2", "r3"), questions)


SETTING = eor.Setting(
    "letters",
    "reader",
    train=ensemble(question("t1", "x", "x", "y")),
    test=ensemble(
        question("q1", "x", "x", "y"),
        question("q2", "x", "y", "y"),
        question("q3", "y", "x", "x"),
        question("q4", "z z", "x", "z"),
    ),
    unknown_contexts=("r3",),
)


@pytest.fixture(scope="module")
def study() -> EorStudy:
    return eor.measure([SETTING], F1, longest_answer=1, bootstrap=QUICK)


def test_the_ensemble_is_held_against_single_retrievers(study: EorStudy) -> None:
    (found,) = study.settings
    # Equal weights are right on t1 already, so nothing better is found: x wins q1 and q3, y q2, z q4.
    assert found.vote.retriever_weights == (0.3, 0.3, 0.3)
    assert [row.correct for row in found.vote.rows] == [1.0, 0.0, 1.0, 0.0]
    assert [one.value for one in found.accuracies] == [2 / 4, 3 / 4, 1 / 4]
    assert found.train_accuracy == (1.0, 1.0, 0.0)
    assert (found.best, found.chosen) == (1, 0)
    # It is wrong on q2, where r1 is right, and on q4, where r2 is.
    assert found.mrlr.value == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    assert [one.value for one in found.exact_match] == [2 / 4, 3 / 4, 1 / 4, 2 / 4]
    against_best, against_chosen = found.comparisons
    assert (against_best.second, against_best.difference.value) == ("r2", 2 / 4 - 3 / 4)
    assert against_best.mcnemar is not None
    assert (against_best.mcnemar.only_first, against_best.mcnemar.only_second) == (0, 1)
    assert against_chosen.mcnemar is not None
    assert (against_chosen.mcnemar.only_first, against_chosen.mcnemar.only_second) == (1, 1)
    assert against_chosen.mcnemar.p_value == 1.0
    bounds = found.retrievers.upper_bounds
    assert bounds is not None
    assert [pools.tolist() for pools in bounds.by_size] == [
        [1 / 4, 2 / 4, 3 / 4],
        [3 / 4, 3 / 4, 4 / 4],
        [1.0],
    ]


def test_weights_are_learned_for_each_pooling_and_compared_with_equal_ones(study: EorStudy) -> None:
    (found,) = study.settings
    assert [(one.pooling, one.learned) for one in found.variants] == [
        (pooling, learned)
        for pooling in ("mean", "max", "majority", "plurality")
        for learned in (True, False)
    ]
    assert {one.train_accuracy for one in found.variants} == {1.0}
    assert found.variants[1].accuracy.value == 2 / 4
    tuned = found.vote.tuned
    assert tuned is not None
    assert tuned.trace == ((1, 1.0),)
    assert tuned.num_evaluations >= len(tuned.trace)


def test_kinds_of_errors_are_of_brief_answers_and_known_contexts(study: EorStudy) -> None:
    (found,) = study.settings
    assert found.errors is not None
    assert found.errors.retrievers == ("r1", "r2")
    assert found.errors.query_ids == ("q1", "q2", "q3")  # an answer to q4 has two words
    shares = {
        one.retriever: {kind: e.value for kind, e in one.errors.items()} for one in found.errors.summaries
    }
    assert shares["r1"] == {
        "retriever_error": 0.0,
        "hallucination_error": 1 / 3,  # y on q3
        "extraction_error": 0.0,
        "lucky_guess": 0.0,
    }
    assert shares["r2"] == {
        "retriever_error": 1.0,
        "hallucination_error": 1.0,
        "extraction_error": 0.0,
        "lucky_guess": 2 / 3,  # x on q1 and q3, out of nothing
    }
    unknown = eor.Setting("l", "m", SETTING.train, SETTING.test, unknown_contexts=("r2", "r3"))
    assert eor.measure([unknown], F1, poolings=["mean"], bootstrap=QUICK).settings[0].errors is None


def test_similarities_compare_the_same_answers_once() -> None:
    calls: list[tuple[str, ...]] = []

    class Counting(TokenF1):
        def matrix(
            self, answers: Sequence[str], *, question: str = "", check: Check = unchecked
        ) -> FloatArray:
            calls.append(tuple(answers))
            return super().matrix(answers, question=question, check=check)

    eor.measure([SETTING], vote.Voting((Counting(),)), bootstrap=QUICK)
    assert len(calls) == len(set(calls)) == 4  # q1 has the answers of t1


def test_an_empty_split_is_refused() -> None:
    empty = eor.Setting("letters", "reader", ensemble(), SETTING.test)
    with pytest.raises(InvalidInput, match="settings of letters"):
        eor.measure([empty], F1)
    with pytest.raises(InvalidInput, match="settings"):
        eor.measure([], F1)


def test_tables_and_files_tell_all_of_it(study: EorStudy, tmp_path: Path) -> None:
    tables = {table.name: table for table in study.tables()}
    assert list(tables) == [
        "main", "comparisons", "splits", "poolings", "retrievers", "upper-bounds", "errors", "questions",
    ]  # fmt: skip
    assert [row[2:5] for row in tables["main"].rows] == [
        ("r2", "best on test", 4),
        ("r1", "best on train", 4),
        ("EoR", "", 4),
    ]
    assert [row[2] for row in tables["splits"].rows] == ["r1", "r2", "r3", "EoR"]
    assert [row[2:4] for row in tables["poolings"].rows[:2]] == [("mean", "learned"), ("mean", "equal")]
    assert [row[-1] for row in tables["questions"].rows] == [2, 1, 2, 1]
    assert len(write_csv(study.tables(), tmp_path / "eor.csv")) == len(tables)
    assert '"study": "eor"' in as_json(study)


def test_figures_say_what_they_stand_on(study: EorStudy) -> None:
    words = statement(study)
    assert words.startswith("N: letters 1 train, 4 test; 3 retrievers; answers judged by exact_match;")
    assert words.endswith("else bca bootstrap over queries, 100 resamples, seed 0")
    drawn = figures.of(study, stated="reader 7")
    assert list(drawn) == [
        "win-ratios", "lose-ratios", "accuracy", "win-ratios-retriever-error",
        "win-ratios-hallucination-error", "win-ratios-extraction-error", "win-ratios-lucky-guess",
        "upper-bounds", "weights",
    ]  # fmt: skip
    for figure in drawn.values():
        strip = " ".join(figure.texts[-1].get_text().split())
        assert strip == f"{words}; reader 7"
    title = drawn["win-ratios-lucky-guess"].axes[0].get_title(loc="left")
    assert title == "3 of 4 test questions"
    other = replace(SETTING, model="other")
    two = eor.measure([SETTING, other], F1, poolings=["mean"], bootstrap=QUICK)
    assert two.names == ("reader", "other")
    assert figures.of(two)["upper-bounds-other"].axes[0].get_title(loc="left") == "other"
    third = eor.measure(
        [SETTING, other, replace(SETTING, dataset="words")], F1, poolings=["mean"], bootstrap=QUICK
    )
    assert third.names == ("letters, reader", "letters, other", "words, reader")
