"""The command line in this process, or in a fork that is killed: both have imported what it needs."""

from __future__ import annotations

import io
import os
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from evenmesh.commands import main
from tests.support.forked import ForkedModule


class Ended(NamedTuple):
    """What became of a command: its exit status, and what it wrote to both outputs."""

    status: int
    out: str
    err: str


def run_here(home: Path, *arguments: str, figures: bool = True) -> Ended:
    """Run ``evenmesh`` with arguments.

    Args:
        home: ``EVENMESH_HOME``.
        figures: whether reports of studies have figures; to draw them takes longer than all else.
    """
    out, err = io.StringIO(), io.StringIO()
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"EVENMESH_HOME": str(home)}))
        if not figures:
            stack.enter_context(patch("evenmesh_lab.figures.of", return_value={}))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        status = main(arguments)
    return Ended(status, out.getvalue(), err.getvalue())


def kill_at(home: Path, journal: Path, lines: int, *arguments: str, later_s: float = 0.0) -> int:
    """Run ``evenmesh`` with arguments, and ``kill -9`` it; return its exit status, which is -9 unless it was done.

    Args:
        home: ``EVENMESH_HOME``.
        journal: what it writes; it is killed when that has so many lines.
        lines: how many.
        later_s: how long after that. Seconds.
    """
    process = ForkedModule(
        "evenmesh", os.environ | {"EVENMESH_HOME": str(home)}, home / "killed.log", arguments
    )
    try:
        ends = time.monotonic() + 600
        while not (journal.exists() and journal.read_bytes().count(b"\n") >= lines):
            if process.poll() is not None:
                break
            assert time.monotonic() < ends, (home / "killed.log").read_text()
            time.sleep(0.01)
        time.sleep(later_s)
    finally:
        process.kill()
        status = process.wait(60)
    return status
