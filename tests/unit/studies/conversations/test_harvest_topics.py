"""Topic files: what they say, and all that is wrong with them at once."""

import json
from pathlib import Path

from evenmesh_studies.conversations.topics import Topic, read_topics


def written(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


def test_both_kinds_of_topics_are_read(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl",
        {"topic": "M001", "question": "List movies", "format": "title, URL"},
        {"topic": "d2d", "turns": ["One?", "Two?", "Three?"], "useful": [["p1"], [], ["p1", "p2"]]},
    )
    read = read_topics(path)
    assert read.problems == ()
    assert read.topics == (
        Topic("M001", question="List movies", format="title, URL", line=1),
        Topic("d2d", turns=("One?", "Two?", "Three?"), useful=(("p1",), (), ("p1", "p2")), line=2),
    )
    assert [one.num_turns for one in read.topics] == [2, 3]


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl",
        {"topic": "a", "question": "x"},
        {"topic": "a", "question": "y"},
        {"topic": " ", "question": "x", "kind": 3},
        {"topic": "b", "turns": ["x"], "question": "x"},
        {"topic": "c"},
        {"topic": "d", "turns": ["x", ""], "useful": [["p"]], "format": "f"},
        {"topic": "e", "question": "x", "useful": ["p"]},
        {"topic": "f", "turns": []},
        ["list"],
    )
    with path.open("a") as stream:
        stream.write("{broken\n")
    problems = read_topics(path).problems
    assert [one.line for one in problems] == [2, 3, 3, 4, 5, 6, 6, 6, 7, 8, 9, 10]
    assert str(problems[0]) == f"{path}:2: repeats the topic 'a' of line 1"
    assert "has the unknown kind" in str(problems[1])


def test_a_file_that_is_not_there_is_one_problem(tmp_path: Path) -> None:
    read = read_topics(tmp_path / "none.jsonl")
    assert (len(read.problems), read.topics) == (1, ())
