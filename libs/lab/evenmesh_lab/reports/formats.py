"""Entries of tables as people read them, and as files hold them."""

from __future__ import annotations

import math

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.studies.tables import Cell

UNDEFINED = "–"


def shown(cell: Cell) -> str:
    """Return an entry for people: three or four digits, intervals in brackets, a dash where undefined."""
    if cell is None:
        return UNDEFINED
    if isinstance(cell, BootstrapInterval):
        return f"{_number(cell.value)}{interval_shown(cell)}"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return _number(cell)
    return cell


def interval_shown(cell: BootstrapInterval) -> str:
    """Return the interval, or why there is none, and the number of undefined values, to follow the value."""
    words = f" (no interval: {cell.missing})" if cell.missing else ""
    if not math.isnan(cell.low):
        words = f" [{_number(cell.low)}, {_number(cell.high)}]"
    if cell.undefined:
        words += f" ({cell.undefined:,} undefined)"
    return words


def _number(value: float) -> str:
    if math.isnan(value):
        return UNDEFINED
    size = abs(value)
    if size == 0 or 1e-3 <= size < 1e5:
        # Three decimals for what lies around 1, fewer the larger it is, one more for small shares.
        digits = 1 if size >= 100 else 4 if 0 < size < 0.1 else 3
        return f"{value:,.{digits}f}".replace("-", "−")
    return f"{value:.2e}".replace("-", "−")
