"""Files of questions: open ones, multiple choice, MIRAGE's own, and known data sets; all problems at once."""

import json
from pathlib import Path

import pytest

from evenmesh_lab.files.questions import DATA_SETS, read_question_set
from tests.unit.lab.conftest import Write

OPEN = '{"id": "q1", "question": "Who?", "answers": ["I", "me"], "gold_passage_ids": ["p1"]}'
CHOICE = '{"query_id": "q2", "question": "Which?", "options": {"A": "one", "B": "two"}, "answer": "B"}'
UNANSWERABLE = '{"query_id": "q3", "question": "Why?", "answerable": false}'


def test_a_file_has_open_questions_multiple_choice_and_unanswerable_ones(write: Write) -> None:
    found = read_question_set(str(write("mine.jsonl.gz", OPEN, CHOICE, UNANSWERABLE)))

    assert (found.name, found.problems) == ("mine", ())
    first, second, third = found.questions
    assert (first.references, first.gold, first.right, first.judged) == (("I", "me"), ("p1",), "", True)
    assert (second.options, second.right, second.judged) == ((("A", "one"), ("B", "two")), "B", True)
    assert second.asked == "Which?\nA. one\nB. two"
    assert (third.answerable, third.judged) == (False, True)


CLAIM = '{"id": "c1", "question": "The Rhine is a lake.", "claim": true, "answer": "False"}'
TURN = '{"id": "t1", "question": "And the Main?", "answers": ["524 km"], "turns": [{"question": "How long is it?", "answer": "1,230 km"}]}'


def test_a_claim_has_a_verdict_and_a_turn_its_conversation(write: Write) -> None:
    claim, turn = read_question_set(str(write("mine.jsonl", CLAIM, TURN))).questions
    assert (claim.asked, claim.right, dict(claim.options)) == (
        "The Rhine is a lake.",
        "F",
        {"T": "True", "F": "False"},
    )
    assert (claim.judged, claim.template) == (True, "rankrag-answer-claim")
    assert turn.turns == (("How long is it?", "1,230 km"),)
    assert (turn.template, turn.so_far) == (None, "How long is it? And the Main?")


def test_claims_without_a_verdict_are_errors(write: Write) -> None:
    path = write(
        "mine.jsonl",
        '{"id": "c1", "question": "?", "claim": true}',
        '{"id": "c2", "question": "?", "claim": true, "answer": "maybe"}',
        '{"id": "c3", "question": "?", "claim": true, "answer": "True", "answers": ["x"]}',
    )
    problems = read_question_set(str(path)).problems
    assert [problem.message.partition(":")[0] for problem in problems] == [
        "is a claim",
        "is a claim",
        "is a claim, and has options, references or turns too",
    ]


def test_all_errors_are_reported_at_once_with_their_lines(write: Write) -> None:
    path = write(
        "mine.jsonl",
        OPEN,
        OPEN,
        "no json",
        '{"id": "q4", "question": "?", "anwsers": ["x"]}',
        '{"id": "q5", "question": "?", "options": {"A": "one", "B": "two"}, "answer": "C"}',
        '{"id": "q6", "question": "?", "options": {"A": "one", "B": "two"}}',
        '{"id": "q7", "question": "?", "options": {"A": "one"}, "answer": "A"}',
        '{"id": "q8", "question": "?", "answer": "A"}',
        '{"id": "q9", "question": "?"}',
    )

    found = read_question_set(str(path))

    assert [(problem.line, problem.message.partition(":")[0]) for problem in found.problems] == [
        (2, "repeats the query 'q1' of line 1"),
        (3, "is not JSON"),
        (
            4,
            "has the unknown column 'anwsers'; columns",
        ),
        (5, "answers 'C'; its options are A, B"),
        (6, "has options, but no answer"),
        (7, "options"),
        (8, "has the letter of an answer, but no options"),
    ]
    # A question without a known answer is no error of the file: whoever needs the answer rejects it.
    assert [one.query_id for one in found.questions if not one.judged] == ["q9"]


def test_what_is_no_file_and_no_data_set_is_one_problem(tmp_path: Path) -> None:
    (problem,) = read_question_set(str(tmp_path / "nothing")).problems
    assert "neither a file nor a data set; data sets: squad-open" in problem.message
    (problem,) = read_question_set("squad-open").problems
    assert "its folder is not known" in problem.message
    (problem,) = read_question_set("squad-open", tmp_path).problems
    assert problem.message == "No such file or directory"


def test_mirage_is_read_as_its_authors_publish_it(write: Write) -> None:
    entry = {"question": "Which?", "options": {"A": "yes", "B": "no"}, "answer": "A"}
    path = write("benchmark.json", json.dumps({"medqa": {"0000": entry}, "bioasq": {"x": entry}}, indent=1))

    found = read_question_set(str(path))

    assert found.problems == ()
    assert [(one.query_id, one.group, one.right) for one in found.questions] == [
        ("medqa/0000", "medqa", "A"),
        ("bioasq/x", "bioasq", "A"),
    ]


def test_known_data_sets_are_read_by_their_own_columns(tmp_path: Path) -> None:
    rows = {
        "squad-open": [{"id": "1", "question": "?", "answers": ["a"], "title": "t", "answers_all": ["a"]}],
        "pubmedqa-l": [{"id": "1", "question": "?", "answers": ["maybe"], "gold_passage_ids": ["p"]}],
        "bioasq-golden": [
            {"id": "1", "question": "?", "answers": ["no"], "type": "yesno"},
            {"id": "2", "question": "?", "answers": ["a", "b"], "type": "factoid"},
            {"id": "3", "question": "?", "answers": [["a"], ["b"]], "type": "list"},
        ],
        "nq-passages/clapnq": [{"id": "1", "question": "?", "answerable": False, "long_answers": []}],
    }
    for name, lines in rows.items():
        path = tmp_path / DATA_SETS[name].questions
        path.parent.mkdir(parents=True, exist_ok=True)
        # The readers go by content, not by the name's ending.
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    found = {name: read_question_set(name, tmp_path) for name in rows}

    assert all(one.problems == () for one in found.values())
    assert found["squad-open"].questions[0].references == ("a",)
    assert found["squad-open"].passages == tmp_path / "squad-open/passages.dev.jsonl.gz"
    pubmed = found["pubmedqa-l"].questions[0]
    assert (pubmed.right, dict(pubmed.options)["C"], pubmed.references) == ("C", "maybe", ())
    assert [(one.group, one.right, one.references) for one in found["bioasq-golden"].questions] == [
        ("yesno", "B", ()),
        ("factoid", "", ("a", "b")),
    ]
    assert found["bioasq-golden"].left_out == {"answers of type list are not one text": 1}
    assert found["nq-passages/clapnq"].questions[0].answerable is False


@pytest.mark.parametrize("seed", [0, 1])
def test_a_draw_is_the_seeds_and_in_the_order_of_the_file(write: Write, seed: int) -> None:
    lines = [f'{{"id": "{i:02}", "question": "?", "answers": ["x"]}}' for i in range(20)]
    whole = read_question_set(str(write("mine.jsonl", *lines)))

    drawn = whole.sample(5, seed)

    ids = [one.query_id for one in drawn.questions]
    assert len(set(ids)) == 5
    assert ids == sorted(ids)
    assert drawn.drawn_of == 20
    assert drawn == whole.sample(5, seed)
    assert ids != [one.query_id for one in whole.sample(5, seed + 1).questions]
    assert whole.sample(20, seed) is whole
