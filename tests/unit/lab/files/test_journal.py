"""Journals: what was written is there once and whole, wherever the writer was killed."""

import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from evenmesh_lab.files import FileError, Journal

SETTINGS = {"queries": "abc", "alphas": [1.0, 2.0]}
WRITER = """
import sys
from pathlib import Path
from evenmesh_lab.files import Journal
with Journal(Path(sys.argv[1]), {"n": 1}) as journal:
    print("open", flush=True)
    for number in range(400):
        if str(number) not in journal.done:
            journal.add(str(number), f"file{number % 3}.jsonl", [f"{number} line {i} " + "x" * 300 for i in range(9)])
"""


def _journal(folder: Path, settings: object = SETTINGS) -> Journal:
    return Journal(folder / "run" / "a.journal", settings)  # type: ignore[arg-type]


def test_what_was_added_is_there_and_known(tmp_path: Path) -> None:
    with _journal(tmp_path) as journal:
        journal.add("q1", "m.jsonl", ["one", "two"])
        journal.add("q2", "m.jsonl", [])
        journal.add("q3", "n.jsonl", ["three"])
    with _journal(tmp_path) as journal:
        assert journal.done == ("q1", "q2", "q3")
        journal.add("q4", "m.jsonl", ["four"])
    assert (tmp_path / "run" / "m.jsonl").read_text() == "one\ntwo\nfour\n"
    assert (tmp_path / "run" / "n.jsonl").read_text() == "three\n"


def test_a_piece_cannot_be_added_again(tmp_path: Path) -> None:
    with _journal(tmp_path) as journal:
        journal.add("q1", "m.jsonl", ["one"])
        with pytest.raises(ValueError, match="already"):
            journal.add("q1", "m.jsonl", ["one"])


def test_what_the_journal_does_not_know_is_cut_off(tmp_path: Path) -> None:
    with _journal(tmp_path) as journal:
        journal.add("q1", "m.jsonl", ["one"])
    file = tmp_path / "run" / "m.jsonl"
    with file.open("a") as stream:
        stream.write("half a li")
    with (tmp_path / "run" / "a.journal").open("a") as stream:
        stream.write('{"piece": "q2", "fi')
    with _journal(tmp_path) as journal:
        assert journal.done == ("q1",)
        assert file.read_text() == "one\n"
        journal.add("q2", "m.jsonl", ["two"])
    assert file.read_text() == "one\ntwo\n"


def test_a_journal_of_other_settings_is_refused_by_name(tmp_path: Path) -> None:
    with _journal(tmp_path):
        pass
    with (
        pytest.raises(
            FileError, match=r"alphas \[1.0, 2.0\] there, \[4.0\] now\. Repeat its .* name another folder"
        ),
        _journal(tmp_path, {**SETTINGS, "alphas": [4.0]}),
    ):
        pass
    with pytest.raises(FileError, match="seed"), _journal(tmp_path, {**SETTINGS, "seed": 1}):
        pass


def test_a_file_that_lost_something_is_refused(tmp_path: Path) -> None:
    with _journal(tmp_path) as journal:
        journal.add("q1", "m.jsonl", ["one"])
    (tmp_path / "run" / "m.jsonl").write_text("o")
    with pytest.raises(FileError, match="was changed"), _journal(tmp_path):
        pass


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.journal").write_text("something else\n")
    with pytest.raises(FileError, match=":1: is not a line of a journal"), _journal(tmp_path):
        pass


def test_pieces_made_with_something_else_are_refused(tmp_path: Path) -> None:
    with _journal(tmp_path) as journal:
        journal.add("q1", "m.jsonl", ["one"], {"index": "v1"})
    with _journal(tmp_path) as journal:
        assert journal.facts == {"index": "v1"}
        journal.add("q2", "m.jsonl", ["two"], {"index": "v1", "model": "m1"})
        with pytest.raises(FileError, match="index was 'v1' and is 'v2' now"):
            journal.add("q3", "m.jsonl", ["three"], {"index": "v2"})
        assert journal.facts == {"index": "v1", "model": "m1"}
    assert (tmp_path / "run" / "m.jsonl").read_text() == "one\ntwo\n"


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with _journal(tmp_path), pytest.raises(FileError, match="another process"), _journal(tmp_path):
        pass


@pytest.mark.slow
def test_kills_at_any_moment_lose_and_repeat_nothing(tmp_path: Path) -> None:

    def start(path: Path) -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)

    with start(tmp_path / "whole" / "a.journal") as whole:
        assert whole.wait(120) == 0
    random, kills = Random(0), 0
    while True:
        with start(tmp_path / "killed" / "a.journal") as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "open\n"
            try:
                writer.wait(random.uniform(0, 0.05))
            except subprocess.TimeoutExpired:
                writer.send_signal(signal.SIGKILL)
                writer.wait(30)
                kills += 1
            else:
                assert writer.returncode == 0
                break
        if kills == 10:
            with start(tmp_path / "killed" / "a.journal") as last:
                assert last.wait(120) == 0
            break
    for name in ("a.journal", "file0.jsonl", "file1.jsonl", "file2.jsonl"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_what_a_killed_run_left_in_a_file_of_its_first_piece_goes(tmp_path: Path) -> None:
    with _journal(tmp_path):
        (tmp_path / "run" / "m.jsonl").write_text(
            "half of the first pie"
        )  # killed before the journal said so
    with _journal(tmp_path) as journal:
        journal.add("q1", "m.jsonl", ["one"])
    assert (tmp_path / "run" / "m.jsonl").read_text() == "one\n"
