"""Times in HDR histograms: three significant digits from a microsecond to an hour, in a few kilobytes.

What they encode to is the format of HdrHistogram (version 2, base64), which its tools in other languages
read; their unit is the microsecond.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final, Self

from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

_LARGEST_US: Final = 3_600_000_000
_DIGITS: Final = 3


class Histogram:
    """Milliseconds, as many as there may be."""

    def __init__(self) -> None:
        self._counts = HdrHistogram(1, _LARGEST_US, _DIGITS)

    @classmethod
    def of(cls, values_ms: Iterable[float]) -> Self:
        """The histogram of some values; ``nan`` is left out."""
        made = cls()
        made.add(values_ms)
        return made

    @classmethod
    def decoded(cls, text: str) -> Self:
        """The histogram that was encoded."""
        made = cls()
        made._counts.decode_and_add(text.encode("ascii"))
        return made

    def add(self, values_ms: Iterable[float]) -> None:
        """Takes values, each at least a microsecond and at most an hour; ``nan`` is left out."""
        for value in values_ms:
            if not math.isnan(value):
                self._counts.record_value(min(max(round(1e3 * value), 1), _LARGEST_US))

    def merge(self, other: "Histogram") -> None:
        """Takes all that another one has."""
        self._counts.add(other._counts)

    def encoded(self) -> str:
        """Its bytes in base64."""
        text: str = self._counts.encode().decode("ascii")
        return text

    @property
    def count(self) -> int:
        """Values in it."""
        found: int = self._counts.get_total_count()
        return found

    @property
    def mean(self) -> float:
        """Mean in milliseconds; ``nan`` when it is empty."""
        return float(self._counts.get_mean_value()) / 1e3 if self.count else math.nan

    def percentiles(self, wanted: Sequence[float]) -> list[float]:
        """Milliseconds below which so many percent of the values are; ``nan`` when it is empty."""
        if not self.count:
            return [math.nan] * len(wanted)
        found = self._counts.get_percentile_to_value_dict(list(wanted))
        return [float(found[one]) / 1e3 for one in wanted]
