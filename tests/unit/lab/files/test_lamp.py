"""LaMP's files as the benchmark publishes them: all seven tasks, what is searched for, all problems at once."""

import json
from pathlib import Path
from typing import Any

import pytest

from evenmesh_lab.files import read_labels, read_queries
from evenmesh_lab.files.lamp import TASKS, read_lamp
from evenmesh_lab.studies import profiles
from tests.unit.lab.conftest import Write

INPUTS = {
    "LaMP-1": (
        'For an author who has written the paper with the title "Rank", which reference is related? Just '
        'answer with [1] or [2] without explanation. [1]: "Fair" [2]: "Fast"',
        "Fair Fast",
    ),
    "LaMP-2": (
        "Which tag does this movie relate to? tags: [a, b] description: A duck sings.",
        "A duck sings.",
    ),
    "LaMP-3": (
        "What is the score of the following review on a scale of 1 to 5? just answer with 1, 2, 3, 4, or 5 "
        "without further explanation. review: It: broke.",
        "It: broke.",
    ),
    "LaMP-4": ("Generate a headline for the following article: Rain fell.", "Rain fell."),
    "LaMP-5": ("Generate a title for the following abstract of a paper: We rank.", "We rank."),
    "LaMP-6": ("Generate a subject for the following email: Hello: you.", "Hello: you."),
    "LaMP-7": ("Paraphrase the following tweet without any explanation before or after it: hi", "hi"),
}
ITEMS: dict[str, dict[str, Any]] = {
    "LaMP-1": {"id": "10", "title": "Old", "abstract": "We did."},
    "LaMP-2": {"id": "10", "tag": "comedy", "description": "A goose."},
    "LaMP-3": {"id": "10", "score": "4", "text": "Fine."},
    "LaMP-4": {"id": "10", "title": "Sun", "text": "It shone.", "date": "2015-01-02"},
    "LaMP-5": {"id": "10", "title": "Old", "abstract": "We did."},
    "LaMP-6": {"id": "10", "title": "Re: x", "text": "Dear all"},
    "LaMP-7": {"id": 10, "text": "yo"},
}
PASSAGES = {
    "LaMP-1": ("Old", "We did."),
    "LaMP-2": ("comedy", "A goose."),
    "LaMP-3": ("4", "Fine."),
    "LaMP-4": ("Sun", "It shone."),
    "LaMP-5": ("Old", "We did."),
    "LaMP-6": ("Re: x", "Dear all"),
    "LaMP-7": ("", "yo"),
}


def files(write: Write, task: str, *questions: dict[str, Any], **outputs: str) -> tuple[Path, Path]:
    """The two files of a task."""
    golds = [{"id": name, "output": output} for name, output in outputs.items()]
    return (
        write("questions.json", json.dumps(list(questions))),
        write("outputs.json", json.dumps({"task": task.replace("-", "_"), "golds": golds})),
    )


@pytest.mark.parametrize("task", list(TASKS))
def test_every_task_is_read(write: Write, task: str) -> None:
    asked, searched = INPUTS[task]
    paths = files(write, task, {"id": "q", "input": asked, "profile": [ITEMS[task]]}, q="right")

    found = read_lamp(*paths)

    assert found.problems == ()
    assert found.task is TASKS[task]
    (query,) = found.queries
    assert (query.query_id, query.question, query.references) == ("q", asked, ["right"])
    assert query.search == searched
    assert query.passages is not None
    (item,) = query.passages
    assert (item.id, item.title, item.text) == ("10", *PASSAGES[task])
    assert item.attributes == ({"date": "2015-01-02"} if task == "LaMP-4" else {})


@pytest.mark.parametrize("task", list(TASKS))
def test_the_prompt_of_a_task_takes_what_its_items_become(task: str) -> None:
    root = Path(__file__).resolve().parents[4]
    template = (
        root
        / "services"
        / "generator"
        / "evenmesh_generator"
        / "templates"
        / f"{TASKS[task].template}.v1.txt"
    ).read_text()
    assert ("document.title" in template) == bool(TASKS[task].title)


def test_all_errors_are_reported_at_once(write: Write) -> None:
    asked = INPUTS["LaMP-4"][0]
    item = ITEMS["LaMP-4"]
    questions, outputs = files(
        write,
        "LaMP-4",
        {"id": "a", "input": asked, "profile": [item]},
        {"id": "a", "input": asked, "profile": [item]},
        {"id": "b", "input": "Say something", "profile": [item]},
        {"id": "c", "input": asked, "profile": [item, item]},
        {"id": "d", "input": asked, "profile": [{"id": "1", "title": "no text"}]},
        {"id": "e", "input": asked},
        {"input": asked, "profile": []},
        {"id": "f", "input": asked, "profile": [item]},
        a="x", b="x", c="x", d="x", e="x", z="x",
    )  # fmt: skip

    found = read_lamp(questions, outputs)

    assert [problem.message for problem in found.problems] == [
        "question 2: repeats the id 'a'",
        "question 3: its input is none of LaMP-4: 'Say something'",
        "question 4: has the item '10' twice",
        "question 5: has no 'text'; it has: id, title",
        "question 6: has no profile: a list of objects",
        "question 7: has no 'id'; it has: input, profile",
        f"question 8: {outputs} has no output for it",
        f"answers questions that {questions} has not: z",
    ]


def test_what_an_ask_cannot_take_is_left_out_and_counted(write: Write) -> None:
    asked = INPUTS["LaMP-7"][0]
    many = [{"id": str(i), "text": "yo"} for i in range(1001)]
    paths = files(
        write,
        "LaMP-7",
        {"id": "a", "input": asked, "profile": many},
        {"id": "b", "input": asked + "x" * 8192, "profile": many[:1]},
        {"id": "c", "input": asked, "profile": [{"id": "1", "text": " "}]},
        {"id": "d", "input": asked, "profile": [{"id": "1", "text": ""}, {"id": "2", "text": "yo"}]},
        {"id": "e", "input": asked, "profile": [{"id": "1", "text": "é" * 40_000}]},
        a="x", b="x", c="x", d="x", e="x",
    )  # fmt: skip

    found = read_lamp(*paths)

    assert found.problems == ()
    assert [query.query_id for query in found.queries] == ["d"]
    assert found.left_out == {
        "questions with more than 1,000 items": 1,
        "questions longer than 8,192 bytes": 1,
        "questions without a profile": 1,
        "items that are empty": 2,
        "questions with an item longer than 65,536 bytes": 1,
    }


def test_other_files_are_reported(write: Write, tmp_path: Path) -> None:
    questions = write("questions.json", "[]")
    assert "does not say its task; tasks: LaMP-1" in read_lamp(questions).problems[0].message
    assert "of the task 'LaMP_9'" in read_lamp(questions, task="LaMP_9").problems[0].message
    assert read_lamp(questions, task="LaMP_4").problems == ()
    broken = write("broken.json", '[{"id": ')
    assert "is not JSON" in read_lamp(broken, task="LaMP-4").problems[0].message
    missing = read_lamp(questions, tmp_path / "none.json", "LaMP-4")
    assert missing.problems[0].message == "No such file or directory"
    assert (
        "is not a list of objects"
        in read_lamp(write("o.json", '{"id": 1}'), task="LaMP-4").problems[0].message
    )


def test_queries_of_lamp_are_queries(write: Write) -> None:
    asked, searched = INPUTS["LaMP-5"]
    paths = files(write, "LaMP-5", {"id": "q", "input": asked, "profile": [ITEMS["LaMP-5"]]}, q="right")
    (record,) = read_lamp(*paths).queries

    found = read_queries(write("queries.jsonl", record.model_dump_json(exclude_none=True)))

    assert found.problems == ()
    (query,) = found.queries
    assert (query.search, query.references, query.passages[0].id) == (searched, ("right",), "10")


def test_statistics_are_of_questions_with_two_useful_items(write: Write) -> None:
    def query(name: str, count: int) -> str:
        passages = [{"id": f"p{i}", "text": "x"} for i in range(count)]
        return json.dumps({"query_id": name, "question": "?", "passages": passages})

    queries = read_queries(write("q.jsonl", query("a", 4), query("b", 10), query("c", 3), query("d", 2)))
    labels = read_labels(
        write("l.qrels", "a 0 p0 1", "a 0 p1 1", *(f"b 0 p{i} 1" for i in range(4)), "c 0 p0 1", "d 0 p9 1")
    )

    found = profiles.statistics("toy", queries.queries, labels)

    # c has a single useful item, d none among its own.
    assert (found.before, found.questions) == (4, 2)
    assert (found.documents, found.documents_std) == ((4 + 10) / 2, (10 - 4) / 2)
    assert (found.useful, found.useful_std) == ((2 + 4) / 2, (4 - 2) / 2)
    assert found.useful_percent == 100 * (2 / 4 + 4 / 10) / 2
    table = profiles.table([found])
    assert table.rows == (("toy", 2, 4, 7.0, 3.0, 3.0, 1.0, 45.0),)
