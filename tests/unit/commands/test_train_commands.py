"""``evenmesh train``: what it prints and refuses."""

import gzip
import json
from pathlib import Path

import pytest

from evenmesh.commands import main

RECIPE = """
name = "mine"

[[source]]
name = "questions"
dataset = "qa"
kind = "context-rich-qa"
ratio = 3
path = "qa.jsonl"

[[source]]
name = "more"
dataset = "qa"
kind = "context-rich-qa"
ratio = 1
path = "more.jsonl"

[[evaluation]]
dataset = "squad-open"

[stage2]
steps = 1
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    row = {"question": "Who?", "answers": ["Ann"], "passages": [{"text": "Ann does."}]}
    (tmp_path / "qa.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "mine.toml").write_text(RECIPE)
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    return main(
        ["train", "rankrag", "--recipe", str(folder / "mine.toml"), "--data", str(folder), *arguments]
    )


def test_a_dry_run_shows_the_blend(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--dry-run") == 0
    header, first, second, *notes = capsys.readouterr().out.splitlines()
    assert header.split()[:2] == ["source", "data"]
    assert [first.split()[0], *first.split()[-7:]] == [
        "questions", "1", "75.0", "%", "100.0", "%", "0", "0",
    ]  # fmt: skip
    assert "missing" in second
    assert any("more.jsonl" in note for note in notes)
    assert any(note.startswith("could not be compared with: squad-open") for note in notes)


def test_a_dry_run_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--dry-run", "--json") == 0
    reported = json.loads(capsys.readouterr().out)
    assert {one["source"]: one["share"] for one in reported["sources"]} == {"questions": 1.0, "more": 0.0}


def test_what_leaks_is_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "squad-open").mkdir()
    rows = {
        "passages.dev.jsonl.gz": {"id": "p", "title": "t", "text": "Ann does."},
        "questions.dev.jsonl.gz": {
            "id": "q",
            "question": "who",
            "answers": ["Ann"],
            "gold_passage_ids": ["p"],
        },
    }
    for name, row in rows.items():
        with gzip.open(folder / "squad-open" / name, "wt") as stream:
            stream.write(json.dumps(row) + "\n")
    assert run(folder, "--dry-run", "--json") == 1
    assert "the blend is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "reported"),
    [
        ((), 2, "--output is missing"),
        (("--output", "{folder}"), 1, "is not empty"),
        (("--output", "{folder}/new", "--model", "{folder}"), 1, "cannot be loaded"),
        (("--output", "{folder}/new", "--stage", "1"), 1, "has no [stage1]"),
        (("--stage", "3", "--dry-run"), 2, "--stage"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: tuple[str, ...], status: int, reported: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, *(argument.format(folder=folder) for argument in arguments)) == status
    printed = capsys.readouterr().err.strip()
    assert reported in printed
    assert "Traceback" not in printed


def test_nothing_to_export_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "export", str(tmp_path), "--output", str(tmp_path / "out")]) == 1
    assert "settings.json is missing" in capsys.readouterr().err


def test_a_kind_that_does_not_exist_or_is_not_there_cannot_be_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--dry-run", "--without", "guessing") == 2
    assert "--without guessing: allowed: sft, context-rich-qa" in capsys.readouterr().err
    assert run(folder, "--dry-run", "--without", "retrieval-augmented-qa") == 1
    assert "has no source of the kind retrieval-augmented-qa" in capsys.readouterr().err
