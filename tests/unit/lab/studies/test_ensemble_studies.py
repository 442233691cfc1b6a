from pathlib import Path

import numpy as np
import pytest

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.files import Ensemble, EnsembleAnswer, EnsembleQuestion, FileError, read_ensemble
from evenmesh_lab.similarities import Models, load
from evenmesh_lab.studies import Bootstrap, inconsistency, vote
from evenmesh_lab.studies.correctness import holds, unjudged

QUICK = Bootstrap(num_resamples=100)
F1 = vote.Voting((load("token_f1", Models()),))


def question(
    query: str, answers: str, *, reference: str = "x", sample: int | None = None
) -> EnsembleQuestion:
    """One letter is one retriever's answer."""
    made = tuple(EnsembleAnswer(letter, None, None) for letter in answers)
    return EnsembleQuestion(query, sample, "", (reference,), made, Path("e.jsonl"), 1)


def ensemble(*questions: EnsembleQuestion) -> Ensemble:
    return Ensemble(("r1", "r2", "r3"), questions)


def test_the_answer_most_like_the_others_wins():
    found = vote.measure(ensemble(question("q1", "yxx"), question("q2", "xyz")), F1, bootstrap=QUICK)

    assert [(row.winner, row.answer, row.correct) for row in found.rows] == [
        ("r2", "x", 1.0),
        ("r1", "x", 1.0),  # nobody is alike: ties go to the first
    ]
    assert [row.score for row in found.rows] == [1 / 2, 0.0]
    assert [row.agreement for row in found.rows] == [1 / 2, 0.0]
    assert found.wins == (1, 1, 0)
    assert found.accuracy is not None
    assert found.accuracy.value == 1.0
    assert found.best_possible is not None
    assert found.retriever_accuracy is not None
    assert [one.value for one in found.retriever_accuracy] == [1 / 2, 1 / 2, 1 / 2]


def test_weights_are_those_given_or_those_that_training_finds():
    asked = ensemble(question("q1", "yyx"), question("q2", "zzx"))

    weighted = vote.Voting(F1.similarities, retriever_weights=(0.05, 0.05, 1.0))
    assert vote.measure(asked, weighted, bootstrap=QUICK).wins == (0, 0, 2)

    alike = tuple(EnsembleAnswer(f"y {letter}", None, None) for letter in "abx")
    training = ensemble(EnsembleQuestion("q1", None, "", ("y x",), alike, Path("t.jsonl"), 1))
    assert vote.measure(training, F1, bootstrap=QUICK).wins == (1, 0, 0)
    tuned = vote.measure(training, F1, training=training, bootstrap=QUICK)
    assert tuned.tuned is not None
    assert tuned.tuned.correctness == 1.0
    assert tuned.wins == (0, 0, 1)
    assert tuned.retriever_weights == tuned.tuned.retriever_weights
    with pytest.raises(InvalidInput, match=r"training\.retrievers"):
        vote.measure(asked, F1, training=Ensemble(("a",), ()))
    with pytest.raises(InvalidInput, match="retriever_weights"):
        vote.measure(asked, vote.Voting(F1.similarities, retriever_weights=(1.0,)))


def test_without_references_a_vote_has_no_accuracy():
    asked = ensemble(EnsembleQuestion("q1", None, "", (), question("q1", "xxy").answers, Path("e.jsonl"), 7))

    found = vote.measure(asked, F1, bootstrap=QUICK)
    assert found.accuracy is None
    assert [column.name for column in found.tables()[0].columns] == ["who", "weight", "wins"]
    with pytest.raises(FileError, match=r"e\.jsonl:7: begins query 'q1', which has neither references nor"):
        inconsistency.measure(asked)


def test_the_questions_that_cannot_be_judged_are_named():
    lacking = EnsembleQuestion("q2", None, "", (), question("q2", "xxy").answers, Path("e.jsonl"), 7)
    assert unjudged(ensemble(question("q1", "xyz"), lacking)) == ["q2"]
    assert vote.measure(ensemble(question("q1", "xyz"), lacking), F1, bootstrap=QUICK).accuracy is None


def test_win_ratios_of_few_lost_questions_have_no_interval():
    few = [question(f"q{n}", "xyx" if n < 11 else "xxy") for n in range(60)]
    found = {one.retriever: one for one in inconsistency.measure(ensemble(*few), bootstrap=QUICK).summaries}
    assert found["r1"].mrwr.missing == "only 11 of 60 answers are wrong"
    assert found["r1"].mrwr.value == 1.0
    assert np.isnan(found["r2"].mrlr.low)
    assert found["r3"].mrlr.missing == "all resamples are alike"  # both others are right in each of its 49
    more = [question(f"q{n}", "xyx" if n < 11 else "yyx" if n == 11 else "xxy") for n in range(60)]
    enough = inconsistency.measure(ensemble(*more), bootstrap=QUICK).summaries[1].mrlr
    assert (enough.missing, np.isnan(enough.low)) == ("", False)


def test_win_ratios_and_bounds_are_those_of_the_formulas():
    asked = ensemble(
        question("q1", "xyy"), question("q2", "xxy"), question("q3", "yyy"), question("q4", "xxx")
    )

    found = inconsistency.measure(asked, bootstrap=QUICK)

    np.testing.assert_array_equal(found.correct, [[1, 1, 0, 1], [0, 1, 0, 1], [0, 0, 0, 1]])
    # r1 is right on one of the two that r2 gets wrong, and two of the three that r3 does.
    np.testing.assert_allclose(found.win_ratios.matrix, [[0, 1 / 2, 2 / 3], [0, 0, 1 / 3], [0, 0, 0]])
    assert found.summaries[0].mrwr.value == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert found.summaries[2].mrlr.value == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert found.upper_bounds is not None
    np.testing.assert_allclose(found.upper_bounds.mean, [(3 + 2 + 1) / 4 / 3, (3 + 3 + 2) / 4 / 3, 3 / 4])
    assert found.errors == {}
    np.testing.assert_allclose(found.agreement, [[1, 3 / 4, 1 / 2], [3 / 4, 1, 3 / 4], [1 / 2, 3 / 4, 1]])


def test_samples_of_a_query_show_consistency_and_are_no_more_queries():
    asked = ensemble(*(question("q1", letters, sample=n) for n, letters in enumerate(("xxy", "xyy", "xyy"))))

    found = inconsistency.measure(asked, bootstrap=QUICK)

    first, second, _ = found.summaries
    assert first.consistency is not None
    assert first.consistency.value == 1.0
    assert second.consistency is not None
    assert second.consistency.value == 1 / 3  # one of three pairs
    assert (second.accuracy.value, second.accuracy.defined) == (1 / 3, 1)


def test_kinds_of_errors_need_contexts(examples):
    found = inconsistency.measure(read_ensemble([examples / "ensemble.jsonl"]), bootstrap=QUICK)

    shares = {kind: matrix.mean(axis=1).tolist() for kind, matrix in found.errors.items()}
    # bm25 always finds the answer, and once answers what its passages do not hold.
    assert shares["retriever_error"] == [0, 1 / 4, 3 / 4]
    assert shares["hallucination_error"] == [1 / 4, 1 / 4, 1 / 4]
    assert shares["lucky_guess"] == [0, 0, 1 / 4]
    assert found.error_win_ratios is not None


def test_one_retriever_is_no_ensemble():
    with pytest.raises(InvalidInput, match="at least 2"):
        inconsistency.measure(Ensemble(("r1",), (question("q1", "x"),)))


def test_an_answer_without_a_word_is_held_by_nothing():
    assert holds("the red bike", "red")
    assert not holds("the red bike", "…")
