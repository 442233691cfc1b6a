"""The answering study on records whose numbers can be counted by hand."""

import math

import pytest

from evenmesh_core.errors import InvalidInput
from evenmesh_lab.figures.answering import answering_figures
from evenmesh_lab.files.answered import AnsweredRecord, TimesRecord
from evenmesh_lab.reports.markdown import as_markdown
from evenmesh_lab.studies import Bootstrap
from evenmesh_lab.studies.answering import AnsweringStudy, is_abstention, measure
from evenmesh_lab.studies.answering_paper import paper_tables, percent
from evenmesh_lab.studies.choices import choice

FAST = Bootstrap(num_resamples=200)
OPTIONS = {"A": "the mandibular canal", "B": "mandibular canal and sinus", "C": "yes", "D": "no"}


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        (" (B). ", "B"),
        ("B. mandibular canal", "B"),
        ("(C) whatever", "C"),
        ("The answer is D.", "D"),
        ("the correct option: (A)", "A"),
        # "a" is an article there, and no choice.
        ("The answer is a guess", None),
        ("A canal", None),
        ("E", None),
        ("Mandibular Canal.", "A"),
        ("It is the mandibular canal and sinus, I think", "B"),
        ("yes, it does", "C"),
        ("yes and no", None),
        ("not in the passages", None),
        ("", None),
    ],
)
def test_choices_are_read_as_the_docstring_says(answer: str, letter: str | None) -> None:
    assert choice(answer, OPTIONS) == letter


def test_abstentions_are_known_by_their_words() -> None:
    assert is_abstention("Not in the  passages.")
    assert not is_abstention("not in the passages of the text")
    assert is_abstention("I cannot say", "i cannot say.")


def answered(query: str, reranker: str, answer: str | None, **more: object) -> AnsweredRecord:
    facts = {
        "dataset": "toy",
        "query_id": query,
        "retriever": "bm25",
        "reranker": reranker,
        "n": 10,
        "k": 5,
        "model": "m",
        "passages": 10,
        "answer": answer,
    } | more
    return AnsweredRecord.model_validate(facts)


def timed(query: str, reranker: str, rerank: float, generate: float) -> TimesRecord:
    return TimesRecord(
        dataset="toy",
        query_id=query,
        retriever="bm25",
        reranker=reranker,
        n=10,
        k=5,
        model="m",
        retrieve_ms=1.0,
        rerank_ms=rerank,
        generate_ms=generate,
    )


@pytest.fixture
def study() -> AnsweringStudy:
    """Three open questions, with and without reranking; q3 has no answer without."""
    references = {"q1": ["Paris"], "q2": ["red fox"], "q3": ["7"]}
    ranks = {
        ("q1", "none"): (1, 1),
        ("q2", "none"): (7, 7),
        ("q3", "none"): (None, None),
        ("q1", "rankrag"): (1, 2),
        ("q2", "rankrag"): (7, 3),
        ("q3", "rankrag"): (None, None),
    }
    said = {
        ("q1", "none"): "Paris",
        ("q2", "none"): "a dog",
        ("q3", "none"): None,
        ("q1", "rankrag"): "in Paris",
        ("q2", "rankrag"): "The red fox!",
        ("q3", "rankrag"): "not in the passages",
    }
    records = [
        answered(
            query,
            reranker,
            answer,
            references=references[query],
            first_before=ranks[query, reranker][0],
            first_after=ranks[query, reranker][1],
            gold=2 if query == "q1" else 0,
            gold_before=[1, 8] if query == "q1" else [],
            gold_after=[2, 4] if query == "q1" and reranker == "rankrag" else [],
        )
        for (query, reranker), answer in said.items()
    ]
    times = [timed(f"q{i}", "none", 0.0, 10.0) for i in (1, 2, 3)]
    times += [timed(f"q{i}", "rankrag", 30.0, 5.0) for i in (1, 2, 3)]
    return measure(records, times, bootstrap=FAST)


def test_answers_are_scored_and_what_is_unanswered_is_counted(study: AnsweringStudy) -> None:
    none, ranked = study.summaries
    assert (none.system, ranked.system) == ("bm25", "bm25 + rankrag")
    assert (none.questions, none.unanswered, ranked.unanswered) == (3, 1, 0)
    assert none.means["exact_match"].value == (1 + 0) / 2
    assert none.means["exact_match"].undefined == 1
    assert ranked.means["exact_match"].value == pytest.approx((0 + 1 + 0) / 3)
    # "in Paris" against "Paris": precision 1/2, recall 1.
    assert ranked.means["token_f1"].value == pytest.approx((2 * (1 / 2) * 1 / (1 / 2 + 1) + 1 + 0) / 3)
    # Holding the reference is enough.
    assert ranked.means["accuracy"].value == pytest.approx((1 + 1 + 0) / 3)
    assert (none.abstained, ranked.abstained) == (0, 1 / 3)


def test_recall_is_by_depth_and_only_as_deep_as_was_retrieved(study: AnsweringStudy) -> None:
    found = {(one.kind, one.reranker, one.depth): one for one in study.recalls}
    assert {depth for _, _, depth in found} == {5, 10}
    five = found["answer", "rankrag", 5]
    assert five.before.value == pytest.approx(1 / 3)
    assert five.after.value == pytest.approx(2 / 3)
    assert five.difference.value == pytest.approx(1 / 3)
    assert five.gap_closed == pytest.approx((2 / 3 - 1 / 3) / (1 - 1 / 3))
    assert found["answer", "rankrag", 10].after.value == pytest.approx(2 / 3)
    gold = found["gold", "rankrag", 5]
    # Only q1 has gold passages, two of them.
    assert (gold.before.value, gold.after.value, gold.before.undefined) == (1 / 2, 2 / 2, 2)


def test_time_is_held_against_generating_without_reranking(study: AnsweringStudy) -> None:
    none, ranked = study.times
    assert (none.overhead, ranked.overhead) == (1.0, (30 + 5) / 10)
    assert (ranked.rerank.value, ranked.retrieve.value) == (30.0, 1.0)


def test_systems_that_differ_in_one_thing_are_compared(study: AnsweringStudy) -> None:
    by = {one.measure: one for one in study.comparisons["toy"]}
    # q3 has no answer in one of them: q1 is won, q2 lost.
    assert by["exact_match"].difference.value == (1 - 1) / 2
    test = by["exact_match"].mcnemar
    assert test is not None
    assert (test.only_first, test.only_second) == (1, 1)


def test_tables_and_figures_are_the_papers(study: AnsweringStudy) -> None:
    tables = {table.name: table for table in paper_tables(study)}
    assert list(tables) == ["paper-answers", "paper-recall", "paper-cost"]
    answers = tables["paper-answers"]
    assert [column.label for column in answers.columns] == ["system", "toy EM", "toy F1", "toy accuracy"]
    assert answers.rows[1][1] == percent(study.summaries[1].means["exact_match"])
    assert str(answers.rows[1][1]).startswith("33.3 [")
    assert tables["paper-cost"].rows[1][3] == "3.50"
    assert set(answering_figures(study)) == {"answers", "answer-recall", "answers-time"}
    markdown = as_markdown([answers])
    assert markdown.startswith(
        "## Answers: EM / F1 / accuracy (as Yu et al. 2024, tables 2, 3 and 9)\n\n| system |"
    )
    assert "| bm25 + rankrag | 33.3 [" in markdown
    assert study.tables()[-1].name == "questions"
    assert len(study.tables()[-1].rows) == 6


def test_multiple_choice_is_accuracy_by_part_and_what_cannot_be_read_is_wrong() -> None:
    options = {"A": "yes", "B": "no"}
    more = {"options": options, "right": "A"}
    study = measure(
        [
            answered("q1", "none", "A", group="medqa", **more),
            answered("q2", "none", "B", group="medqa", **more),
            answered("q3", "none", "I do not know", group="bioasq", **more),
        ],
        bootstrap=FAST,
    )
    (whole,) = study.summaries
    assert whole.means.keys() == {"accuracy"}
    assert (whole.means["accuracy"].value, whole.unread) == (pytest.approx(1 / 3), 1)
    assert {one.dataset: one.means["accuracy"].value for one in study.groups} == {
        "toy/medqa": 1 / 2,
        "toy/bioasq": 0.0,
    }
    (table,) = paper_tables(study)
    # The mean over data sets, not over questions.
    assert table.rows[0][-1] == f"{100 * (1 / 2 + 0) / 2:.1f}"
    assert study.recalls == ()


def test_abstaining_is_right_where_there_is_no_answer() -> None:
    study = measure(
        [
            answered("q1", "none", "not in the passages", answerable=False),
            answered("q2", "none", "Paris", answerable=False),
            answered("q3", "none", "Not in the passages.", references=["Paris"]),
            answered("q4", "none", "Paris", references=["Paris"]),
        ],
        bootstrap=FAST,
    )
    (found,) = study.abstentions
    assert (found.unanswerable, found.abstained, found.both) == (2, 2, 1)
    assert (found.precision, found.recall) == (1 / 2, 1 / 2)
    # Of the answerable ones one is right; the others have no references to be held against.
    assert study.summaries[0].means["exact_match"].value == 1 / 2


def test_names_tell_what_systems_do_not_share() -> None:
    records = [
        answered("q1", reranker, "x", references=["x"], k=k, n=n)
        for reranker, n, k in (("none", 20, 1), ("rankrag", 10, 1), ("rankrag", 20, 1), ("rankrag", 20, 5))
    ]
    assert list(measure(records, bootstrap=FAST).configurations) == [
        "bm25, N = 20, k = 1",
        "bm25 + rankrag, N = 10, k = 1",
        "bm25 + rankrag, N = 20, k = 1",
        "bm25 + rankrag, N = 20, k = 5",
    ]


def test_a_question_answered_twice_and_nothing_at_all_are_refused() -> None:
    with pytest.raises(InvalidInput, match="every question once"):
        measure([answered("q1", "none", "x"), answered("q1", "none", "y")])
    with pytest.raises(InvalidInput, match="at least one"):
        measure([])


def test_markdown_keeps_cells_in_their_place(study: AnsweringStudy) -> None:
    table = study.tables()[-1]
    assert math.isnan(study.rows[2].exact_match)
    row = next(line for line in as_markdown([table]).splitlines() if "| q3 | bm25 |" in line)
    assert row == "| toy | q3 | bm25 | – | – | – | – |"
