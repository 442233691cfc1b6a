"""Record times in HDR histograms: three significant digits from a microsecond to an hour, in a few kilobytes.

The encoding is that of HdrHistogram (version 2, base64, microseconds), which tools in other languages read.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final, Self

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

_LARGEST_US: Final = 3_600_000_000
_DIGITS: Final = 3


class Histogram:
    """Counts durations in milliseconds."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _LARGEST_US, _DIGITS)

    @classmethod
    def of(cls, values_ms: Iterable[float]) -> Self:
        """Return the histogram of some values; skip ``nan``."""
        made = cls()
        made.add(values_ms)
        return made

    @classmethod
    def decoded(cls, text: str) -> Self:
        """Return the histogram that :meth:`encoded` wrote."""
        made = cls()
        made._counts.decode_and_add(text.encode("ascii"))
        return made

    def add(self, values_ms: Iterable[float]) -> None:
        """Add values, clamped to between a microsecond and an hour; skip ``nan``."""
        for value in values_ms:
            if not math.isnan(value):
                self._counts.record_value(min(max(round(1e3 * value), 1), _LARGEST_US))

    def encoded(self) -> str:
        """Return the encoding in base64."""
        text: str = self._counts.encode().decode("ascii")
        return text

    @property
    def count(self) -> int:
        """Number of values."""
        found: int = self._counts.get_total_count()
        return found

    @property
    def mean(self) -> float:
        """Mean in milliseconds; ``nan`` when it is empty."""
        return float(self._counts.get_mean_value()) / 1e3 if self.count else math.nan

    def percentiles(self, wanted: Sequence[float]) -> list[float]:
        """Return percentiles in milliseconds; ``nan`` when it is empty."""
        if not self.count:
            return [math.nan] * len(wanted)
        found = self._counts.get_percentile_to_value_dict(list(wanted))
        return [float(found[one]) / 1e3 for one in wanted]
