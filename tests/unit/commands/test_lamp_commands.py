"""``evenmesh eval lamp``: from LaMP's files to queries, those with two useful items, and appendix J."""

import json
from pathlib import Path

import pytest

from evenmesh.commands import main
from evenmesh_lab.files import read_queries

Output = pytest.CaptureFixture[str]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Two questions of LaMP-4."""
    item = {"title": "Sun", "text": "It shone."}
    questions, outputs = tmp_path / "dev_questions.json", tmp_path / "dev_outputs.json"
    profile = [{"id": str(i), **item} for i in range(3)]
    questions.write_text(
        json.dumps(
            [{"id": name, "input": f"Headline of the article: {name}", "profile": profile} for name in "ab"]
        )
    )
    golds = [{"id": name, "output": "Rain"} for name in "ab"]
    outputs.write_text(json.dumps({"task": "LaMP_4", "golds": golds}))
    return str(questions), str(outputs)


def test_files_become_queries_that_are_filtered_and_counted(
    files: tuple[str, str], tmp_path: Path, capsys: Output
) -> None:
    queries, labels, kept = (tmp_path / name for name in ("q.jsonl", "l.qrels", "kept.jsonl"))
    assert main(["eval", "lamp", "convert", *files, "-o", str(queries)]) == 0
    assert capsys.readouterr().out == (
        f"LaMP-4: 2 questions with 6 items to {queries}; prompt lamp-4, metric LaMP-4\n"
    )
    labels.write_text("a 0 0 1\na 0 2 1\nb 0 1 1\n")

    assert main(["eval", "lamp", "filter", str(queries), "-l", str(labels), "-o", str(kept)]) == 0
    assert capsys.readouterr().out == f"1 of 2 questions to {kept}\n"
    (query,) = read_queries(kept).queries
    assert (query.query_id, query.search) == ("a", "a")

    page = tmp_path / "statistics.md"
    arguments = [str(queries), "-l", str(labels), "--markdown", str(page)]
    assert main(["eval", "lamp", "statistics", *arguments]) == 0
    # 3 items, 2 of them useful: 66.7 %.
    assert "| q | 1 | 2 | 3.000 | 0.000 | 2.000 | 0.000 | 66.667 |" in page.read_text()


def test_problems_are_reported_and_nothing_is_written(
    files: tuple[str, str], tmp_path: Path, capsys: Output
) -> None:
    out = tmp_path / "q.jsonl"
    assert main(["eval", "lamp", "convert", *files, "-o", str(out), "--task", "LaMP-1"]) == 2
    said = capsys.readouterr().err
    assert "question 1: has no 'abstract'; it has: id, title, text" in said
    assert "question 2: has no 'abstract'" in said
    assert not out.exists()

    out.write_text('{"query_id": "a", "question": "?"}\n')
    assert main(["eval", "lamp", "statistics", str(out), "-l", str(out)]) == 2
    assert "these bring no passages: a" in capsys.readouterr().err
