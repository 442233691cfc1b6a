"""Questions of a file, and all that is wrong with it at once."""

from pathlib import Path

from evenmesh_lab.files import read_queries
from evenmesh_lab.files.records import PassageRecord


def _file(folder: Path, *lines: str) -> Path:
    path = folder / "queries.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_questions_are_read_in_order(tmp_path: Path) -> None:
    found = read_queries(
        _file(
            tmp_path,
            '{"query_id": "q1", "question": "Who?", "references": ["I"]}',
            '{"id": "q2", "question": "What?", "answers": ["it", "that"]}',
            '{"query_id": "q3", "question": "Which?", "passages": [{"id": "p", "text": "this"}]}',
        )
    )
    assert found.problems == ()
    assert [(one.query_id, one.question, one.references) for one in found.queries] == [
        ("q1", "Who?", ("I",)),
        ("q2", "What?", ("it", "that")),
        ("q3", "Which?", ()),
    ]
    assert found.queries[2].passages == (PassageRecord(id="p", text="this"),)


def test_every_problem_is_reported(tmp_path: Path) -> None:
    path = _file(
        tmp_path,
        '{"query_id": "q1", "question": "Who?"}',
        "not json",
        '{"query_id": "q1", "question": "Who again?"}',
        '{"query_id": "q2", "questoin": "What?"}',
        '{"query_id": "q3", "question": "x", "passages": [{"id": "p", "text": "a"}, {"id": "p", "text": "b"}]}',
    )
    found = read_queries(path)
    assert [(one.line, one.message.split(":")[0]) for one in found.problems] == [
        (2, "is not JSON"),
        (3, "repeats the query 'q1' of line 1"),
        (4, "has no 'question'; columns"),
        (5, "has the passage 'p' twice"),
    ]
    assert [one.query_id for one in found.queries] == ["q1", "q3"]


def test_a_file_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    found = read_queries(tmp_path / "none.jsonl")
    assert found.queries == ()
    assert [one.line for one in found.problems] == [None]
