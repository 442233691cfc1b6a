"""Generate the times at which calls are due, for a rate or from a trace."""

import csv
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from evenmesh_core.arrays import FloatArray, number
from evenmesh_core.seeds import Seed, generator
from evenmesh_lab.files import FileError

_LEAST: Final = 1e-6
_MORE: Final = 5.0


def poisson(rate: float, seconds: float, rng: Seed) -> FloatArray:
    """Draw the times of a Poisson process: callers who do not wait for each other.

    Args:
        rate: calls per second, above 0.
        seconds: duration, above 0.
        rng: a NumPy generator, or a seed for a new one.

    Returns:
        Times in [0, seconds), in seconds, ascending.

    Raises:
        InvalidInput: an argument out of range.
    """
    number("rate", rate, low=_LEAST)
    number("seconds", seconds, low=_LEAST)
    draws = generator(rng)
    expected = rate * seconds
    times = np.empty(0)
    while not times.size or times[-1] < seconds:
        more = int(expected + _MORE * np.sqrt(expected) + _MORE)
        gaps = draws.exponential(1 / rate, more)
        times = np.concatenate([times, (times[-1] if times.size else 0.0) + np.cumsum(gaps)])
    kept: FloatArray = times[times < seconds]
    return kept


def read_trace(path: Path, *, speed: float = 1.0) -> FloatArray:
    """Read arrival times from the first column of a text or CSV file.

    Each line begins with seconds, or with a date and time (ISO 8601); empty lines, lines that begin with
    ``#`` and a heading in the first line are skipped.

    Args:
        path: the file.
        speed: factor by which the trace is played faster, above 0.

    Returns:
        Times in seconds from the first, ascending.

    Raises:
        InvalidInput: ``speed`` out of range.
        FileError: a line is not a time, there is none, or the file is not text.
        OSError: it cannot be read.
    """
    number("speed", speed, low=_LEAST)
    times = []
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            for line, row in enumerate(csv.reader(stream), start=1):
                first = row[0].strip() if row else ""
                if not first or first.startswith("#"):
                    continue
                moment = _moment(first)
                if moment is not None:
                    times.append(moment)
                elif line > 1:
                    raise FileError(
                        path, line, f"{first!r} is neither a number of seconds nor a date and time"
                    )
    except (UnicodeDecodeError, csv.Error) as exc:
        raise FileError(path, None, f"is not text: {exc}") from exc
    if not times:
        raise FileError(path, None, "has no arrival")
    rising = np.sort(np.array(times))
    played: FloatArray = (rising - rising[0]) / speed
    return played


def _moment(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = datetime.fromisoformat(text).timestamp()
        except ValueError:
            return None
    return seconds if np.isfinite(seconds) else None
