"""Count, mean and spread of a stream of values, kept in constant space and merged without loss."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from scipy import special

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

    def estimate(self) -> Estimate:
        """Mean with Student's 95 % interval: mean ± t(0.975; count - 1) · √(m2 / (count - 1) / count)."""
        if not self.count:
            return Estimate(None, None, None, 0, self.undefined)
        if self.count == 1:
            return Estimate(self.mean, None, None, 1, self.undefined)
        freedom = self.count - 1
        half = float(special.stdtrit(freedom, _UPPER_TAIL)) * math.sqrt(self.m2 / freedom / self.count)
        return Estimate(self.mean, self.mean - half, self.mean + half, self.count, self.undefined)
