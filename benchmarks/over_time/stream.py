"""The asks of the simulation, and where the study lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.over_time.policies import SEED
from benchmarks.over_time.sets import Pool

ASKS: Final = 5_000
OUT: Final = Path(__file__).resolve().parents[2] / "docs" / "studies" / "over-time"


def asks(found: Sequence[Pool]) -> list[Pool]:
    """Return the asks: questions drawn with replacement, the same ones each time."""
    order = np.random.default_rng(SEED).integers(0, len(found), size=ASKS)
    return [found[place] for place in order.tolist()]
