"""The order in which groups of tests are handed out to the processes of pytest-xdist."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

SERVERS: Final = ("mesh", "triton")
"""Groups that share a server: each is one process's work for most of the run."""
WAITING: Final = ("faults", "attack", "integration")
"""Folders whose tests wait for processes that they start, those with the longest tests first."""
COMPUTING: Final = ("contract", "fuzz", "unit")
"""Folders whose tests compute, the same way."""
LONG_UNTIL: Final = 0.8
"""Part of the run in which long files begin; short ones fill up the end."""


def places(groups: Mapping[str, str], slow: Set[str]) -> dict[str, float]:
    """Return where each file comes: those of a shared server at -1, the others in [0, 1).

    Tests that wait leave the processors to others; side by side they leave them idle. So files that wait, long
    files that compute, and short ones come mixed the same way from the beginning to the end.

    Args:
        groups: by file, the server that it shares, or the folder of its tests.
        slow: unit tests' files with a slow test.
    """
    placed = {file: -1.0 for file, group in groups.items() if group in SERVERS}
    short = [one for one in groups if groups[one] == "unit" and one not in slow]
    waiting = sorted(
        (one for one in groups if groups[one] in WAITING), key=lambda one: WAITING.index(groups[one])
    )
    computing = [one for one in groups if groups[one] in COMPUTING and (groups[one] != "unit" or one in slow)]
    for files, until in ((waiting, LONG_UNTIL), (computing, LONG_UNTIL), (short, 1.0)):
        placed |= {file: until * at / len(files) for at, file in enumerate(files)}
    return placed
