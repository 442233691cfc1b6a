"""Count, mean and spread of streams of values, kept in constant space and merged without loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from ragcore.arrays import FloatArray
from services.evaluator.domain import Estimate

_UPPER_TAIL = 0.975  # two-sided 95 %


@dataclass(frozen=True, slots=True)
class Moments:
    """Welford's running moments of the defined values, and the number of undefined ones.

    ``m2`` is the sum of squared distances to the mean, so that the sample variance is m2 / (count - 1).
    Merging is Chan, Golub and LeVeque (1979): the cost does not depend on how many values came before, and
    there is no difference of large sums to lose digits in.
    """

    count: int = 0
    undefined: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @staticmethod
    def of(values: Iterable[float | None]) -> Moments:
        """Moments of ``values``, None being undefined."""
        count = undefined = 0
        mean = m2 = 0.0
        for value in values:
            if value is None:
                undefined += 1
                continue
            count += 1
            distance = value - mean
            mean += distance / count
            m2 += distance * (value - mean)
        return Moments(count, undefined, mean, m2)

    def merged(self, other: Moments) -> Moments:
        """Moments of both streams of values together."""
        undefined = self.undefined + other.undefined
        if not other.count or not self.count:
            one = self if self.count else other
            return Moments(one.count, undefined, one.mean, one.m2)
        count = self.count + other.count
        distance = other.mean - self.mean
        return Moments(
            count,
            undefined,
            self.mean + distance * other.count / count,
            self.m2 + other.m2 + distance * distance * self.count * other.count / count,
        )

    def estimate(self, low: float = -math.inf, high: float = math.inf) -> Estimate:
        """Mean with Student's 95 % interval: mean ± t(0.975; count - 1) · √(m2 / (count - 1) / count).

        The interval ends where the values do, at ``low`` and ``high``: a time is not negative because two of
        them differ.
        """
        if not self.count:
            return Estimate(None, None, None, 0, self.undefined)
        # Rounding may carry a mean past the largest value there can be.
        mean = min(max(self.mean, low), high)
        if self.count == 1:
            return Estimate(mean, None, None, 1, self.undefined)
        freedom = self.count - 1
        half = float(special.stdtrit(freedom, _UPPER_TAIL)) * math.sqrt(self.m2 / freedom / self.count)
        return Estimate(mean, max(mean - half, low), min(mean + half, high), self.count, self.undefined)


@dataclass(frozen=True, slots=True, eq=False)
class KeyedMoments:
    """Moments of many streams, one per key, as columns: what a dict of :class:`Moments` would hold.

    ``keys`` are unique and hold no NUL; ``columns`` is [3 + S, len(keys)]: counts (at least 1), means and m2,
    then S columns that are summed.
    """

    keys: Sequence[str]
    columns: FloatArray

    @staticmethod
    def empty(sums: int = 0) -> KeyedMoments:
        """No streams, with ``sums`` summed columns."""
        return KeyedMoments((), np.empty((3 + sums, 0)))

    @staticmethod
    def of(keys: Sequence[str], values: FloatArray, *sums: FloatArray) -> KeyedMoments:
        """Moments of ``values`` by the keys beside them, which may repeat; ``sums`` are vectors beside."""
        columns = np.stack([np.ones_like(values), values, np.zeros_like(values), *sums])
        return _grouped(keys, columns)

    @staticmethod
    def merged(parts: Sequence[KeyedMoments]) -> KeyedMoments:
        """All streams of at least one part, those of the same key together."""
        if len(parts) == 1:
            return parts[0]
        return _grouped(
            [key for part in parts for key in part.keys], np.concatenate([p.columns for p in parts], axis=1)
        )

    def moments(self, divisors: Mapping[str, float] | None = None) -> Moments:
        """Moments of all values together, each divided by its key's divisor; divided by 0 it is undefined."""
        counts, means, m2 = self.columns[:3]
        undefined = 0
        if divisors is not None:
            by = np.array([divisors[key] for key in self.keys], dtype=np.float64)
            defined = by > 0
            undefined = round(float(counts[~defined].sum()))
            counts, by = counts[defined], by[defined]
            means, m2 = means[defined] / by, m2[defined] / (by * by)
        count = round(float(counts.sum()))
        if not count:
            return Moments(undefined=undefined)
        mean = float(counts @ means) / count
        return Moments(count, undefined, mean, float(m2.sum() + counts @ (means - mean) ** 2))


def _grouped(keys: Sequence[str], columns: FloatArray) -> KeyedMoments:
    places = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    n = len(places)
    if n == len(keys):
        return KeyedMoments(keys, columns)
    at = np.fromiter(map(places.__getitem__, keys), np.int64, len(keys))

    def summed(values: FloatArray) -> FloatArray:
        # Of no values it counts instead of summing, in whole numbers.
        return np.bincount(at, weights=values, minlength=n).astype(np.float64, copy=False)

    counts, means, m2 = columns[:3]
    count = summed(counts)
    mean = summed(counts * means) / count
    spread = summed(m2 + counts * (means - mean[at]) ** 2)
    return KeyedMoments(list(places), np.stack([count, mean, spread, *map(summed, columns[3:])]))
