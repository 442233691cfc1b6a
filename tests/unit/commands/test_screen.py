"""What commands print cannot steer a terminal."""

from __future__ import annotations

import io
import json
import sys

import pytest

from evenmesh.commands import main
from evenmesh.commands.screen import Screen

HOSTILE = "a\x1b[2Jb\x9bc\u202ed\u2066e\x7ff\u2028g"
"""An escape sequence, one as a single character, text that runs from right to left, an isolate, a line's end."""
STEERING = set(HOSTILE) - set("abcdefg[2J")


def test_lines_and_cells_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    screen.line(HOSTILE)
    screen.note(HOSTILE)
    screen.fail(HOSTILE)
    table = screen.table("name", title=HOSTILE)
    table.add_row(HOSTILE)
    screen.out.print(table)
    printed = capsys.readouterr()
    assert not STEERING & set(printed.out + printed.err)
    assert printed.out.count("c�d�e�f�g") == 3


def test_json_escapes_them(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().json({HOSTILE: [HOSTILE, "Zoë שלום"]})
    printed = capsys.readouterr().out
    assert not STEERING & set(printed)
    assert json.loads(printed) == {HOSTILE: [HOSTILE, "Zoë שלום"]}
    assert "Zoë שלום" in printed


def test_cells_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    table = screen.table("run", title="exp:100:title")
    table.add_row("exp:100:a, and more")
    screen.out.print(table)
    screen.line("exp:100:b")
    printed = capsys.readouterr().out
    assert all(f"exp:100:{one}" in printed for one in ("title", "a", "b"))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_holds_every_text_whatever_the_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    values = ["Zoë", "שלום", "\U0001f511", "no-text-\udcff"]
    for one in values:
        Screen().json(one)
    assert [json.loads(line) for line in written.getvalue().decode(encoding).splitlines()] == values


def test_a_terminal_that_lacks_a_character_fails_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="ascii"))
    assert main(["report", "--window", "דקה", "α"]) == 2
    Screen().line("α = 2")
    sys.stdout.flush()
    sys.stderr.flush()
    assert b"--window is '???'; allowed: all, hour, day" in err.getvalue()
    assert out.getvalue() == b"? = 2\n"
