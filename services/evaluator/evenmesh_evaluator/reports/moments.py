"""Count, mean and spread of streams of values, in constant space and mergeable without loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from evenmesh_core.arrays import FloatArray
from evenmesh_core.bounded_means import bounded_interval, too_few_away
from evenmesh_evaluator.domain import Estimate

_UPPER_TAIL = 0.975  # two-sided 95 %


@dataclass(frozen=True, slots=True)
class Moments:
    """Welford's running moments of the defined values, and the number of undefined ones.

    ``m2`` is the sum of squared distances to the mean, so that the sample variance is m2 / (count - 1).
    Merging follows Chan, Golub and LeVeque (1982): its cost does not depend on the number of values, and it
    subtracts no large sums, which would lose digits.
    """

    count: int = 0
    undefined: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @staticmethod
    def of(values: Iterable[float | None]) -> Moments:
        """Return the moments of ``values``; None is undefined."""
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
        """Return the moments of both streams together."""
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
        """Return the mean with its 95 % interval, for values in [``low``, ``high``].

        Where both ends are finite it is :func:`~evenmesh_core.bounded_means.bounded_interval`. Else it is
        Student's, ± t(0.975; count - 1) · √(m2 / (count - 1) / count), cut to the range, and there is none
        where too few values lie away from a finite ``low``.
        """
        if not self.count:
            return Estimate(None, None, None, 0, self.undefined)
        # Rounding may carry a mean past the range of the values.
        mean = min(max(self.mean, low), high)
        if self.count == 1:
            return Estimate(mean, None, None, 1, self.undefined)
        if math.isfinite(low) and math.isfinite(high):
            limits = bounded_interval(self.count, mean, self.m2, low=low, high=high)
            return Estimate(mean, *limits, self.count, self.undefined)
        if math.isfinite(low) and too_few_away(self.count, mean, self.m2, low=low):
            return Estimate(mean, None, None, self.count, self.undefined)
        freedom = self.count - 1
        half = float(special.stdtrit(freedom, _UPPER_TAIL)) * math.sqrt(self.m2 / freedom / self.count)
        return Estimate(mean, max(mean - half, low), min(mean + half, high), self.count, self.undefined)


@dataclass(frozen=True, slots=True, eq=False)
class KeyedMoments:
    """Moments of many streams, one per key, as columns instead of a dict of :class:`Moments`.

    ``keys`` are unique and hold no NUL; ``columns`` is [3 + S, len(keys)]: counts (at least 1), means and m2,
    then S columns of sums.
    """

    keys: Sequence[str]
    columns: FloatArray

    @staticmethod
    def empty(sums: int = 0) -> KeyedMoments:
        """Return no streams, with ``sums`` summed columns."""
        return KeyedMoments((), np.empty((3 + sums, 0)))

    @staticmethod
    def of(keys: Sequence[str], values: FloatArray, *sums: FloatArray) -> KeyedMoments:
        """Return the moments of ``values`` by parallel ``keys``, which may repeat, with parallel ``sums``."""
        columns = np.stack([np.ones_like(values), values, np.zeros_like(values), *sums])
        return _grouped(keys, columns)

    @staticmethod
    def merged(parts: Sequence[KeyedMoments]) -> KeyedMoments:
        """Merge at least one part, streams of the same key together."""
        if len(parts) == 1:
            return parts[0]
        return _grouped(
            [key for part in parts for key in part.keys], np.concatenate([p.columns for p in parts], axis=1)
        )

    def moments(self, divisors: Mapping[str, float] | None = None) -> Moments:
        """Return the moments of all values, each divided by its key's divisor; division by 0 is undefined."""
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
        # bincount of no values returns integers.
        return np.bincount(at, weights=values, minlength=n).astype(np.float64, copy=False)

    counts, means, m2 = columns[:3]
    count = summed(counts)
    mean = summed(counts * means) / count
    spread = summed(m2 + counts * (means - mean[at]) ** 2)
    return KeyedMoments(list(places), np.stack([count, mean, spread, *map(summed, columns[3:])]))
