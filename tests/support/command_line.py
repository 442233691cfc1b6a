"""The command line in this process, which has imported what it needs: where no process is to be killed."""

from __future__ import annotations

import io
import os
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from evenmesh.commands import main


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
