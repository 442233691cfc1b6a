"""Name the fault points at which a test kills the process, as a crash would."""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "EVENMESH_RETRIEVER_FAULT"
"""Names the point at which the process dies; without it, as ever outside tests, nothing happens."""

POINTS: Final = (
    "ingest.half-written",
    "ingest.written",
    "ingest.moved",
    "ingest.tombstones",
    "embedding.half-written",
    "embedding.moved",
    "compaction.half-written",
    "compaction.written",
    "compaction.moved",
    "swap.version-written",
    "swap.done",
    "sweep.begun",
)
"""Every point, in the order of a life."""


def point(name: str) -> None:
    """End the process with SIGKILL if this is the point that :data:`VARIABLE` names.

    ``name@3`` spares the first two times.
    """
    wanted, _, times = os.environ.get(VARIABLE, "").partition("@")
    if wanted != name:
        return
    left = int(times or 1) - 1
    if left:
        os.environ[VARIABLE] = f"{name}@{left}"
    else:
        os.kill(os.getpid(), signal.SIGKILL)
