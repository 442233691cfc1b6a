"""What commands print cannot steer a terminal."""

from __future__ import annotations

import json

import pytest

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
