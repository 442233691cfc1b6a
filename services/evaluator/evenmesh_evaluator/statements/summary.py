"""Statements of a provider's days: means with intervals, small counts left out, and optional noise."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from evenmesh_core.bounded_means import bounded_interval
from evenmesh_evaluator.domain import Configuration, Estimate, ProviderDay

MAX_CONFIGURATIONS: Final = 100
"""Most configurations of a statement."""
_RELEASED: Final = 10
"""Most numbers of a day that one ask changes, each by at most 1: four counts and six sums of shares."""
_UNITS: Final = 1_000  # sums of shares are released in thousandths, so that noise is drawn in integers
_COUNTS: Final = ("num_found", "num_shown", "num_cited", "num_targeted")
_SUMS: Final = (
    "exposure",
    "exposure_squares",
    "target",
    "target_squares",
    "owed_squares",
    "exposure_targeted",
)


@dataclass(frozen=True, slots=True)
class Window:
    """Days of a statement, UTC, the last one too; counted from 1970-01-01."""

    first_day: int
    last_day: int


@dataclass(frozen=True, slots=True)
class Privacy:
    """What statements keep to themselves.

    Attributes:
        min_asks: fewest asks that a configuration is stated with, [1, inf).
        epsilon: budget of one ask on each day, (0, inf); None for no noise.
        secret: key of the noise, so that a statement asked for again has the same; of no meaning without.
    """

    min_asks: int = 10
    epsilon: float | None = None
    secret: bytes = b""


@dataclass(frozen=True, slots=True)
class ConfigurationExposure:
    """What one configuration showed of a provider: counts of asks, and shares of a context per ask."""

    configuration: Configuration
    num_found: int
    num_shown: int
    num_cited: int
    exposure: Estimate
    target: Estimate
    owed: Estimate


@dataclass(frozen=True, slots=True)
class Stated:
    """What a statement says; ``num_left_out`` is None with noise, because it would be exact."""

    configurations: Sequence[ConfigurationExposure]
    num_left_out: int | None


def state(
    tenant: str, provider: str, window: Window, days: Iterable[ProviderDay], privacy: Privacy
) -> Stated:
    """Return what a statement says of a provider.

    Intervals are of means over asks (:func:`~evenmesh_core.bounded_means.bounded_interval`). With noise,
    each count and each sum of each day and configuration of the window, also of days without any ask,
    carries an independent draw of the discrete Laplace distribution of scale 10 / epsilon: one ask
    changes at most ten of them, each by at most 1. The draw is a function of the secret and of what it is
    added to, so asking again tells nothing more, and what is stated of a window is computed from its
    noisy days alone. A day that changes afterwards, because asks are delivered late, is drawn anew, which
    spends the budget of the day again. Intervals then cover the noise too, by its variance.

    Args:
        tenant: whose asks they are; part of what noise depends on.
        provider: the provider.
        window: the days.
        days: what is known, by configuration, then by day.
        privacy: what is kept back.

    Source: Dwork et al. 2006 for the Laplace mechanism; Ghosh et al. 2012 for its discrete form.
    """
    found = []
    left_out = 0
    for configuration, some in groupby(days, key=lambda day: day.configuration):
        known = {day.day: day for day in some}
        if privacy.epsilon is None:
            total = _total(configuration, known.values())
            variance = 0.0
        else:
            whole = range(window.first_day, window.last_day + 1)
            noisy = [
                _noisy(tenant, provider, known.get(day, ProviderDay(configuration, day)), privacy)
                for day in whole
            ]
            total = _total(configuration, noisy)
            variance = len(whole) * discrete_laplace_variance(_RELEASED / privacy.epsilon)
        if total.num_found < privacy.min_asks:
            left_out += 1
        else:
            found.append(_exposure(total, variance, private=privacy.epsilon is not None))
    found.sort(key=lambda one: -one.num_found)  # of equals, the older configuration first
    left_out += max(0, len(found) - MAX_CONFIGURATIONS)
    return Stated(found[:MAX_CONFIGURATIONS], left_out if privacy.epsilon is None else None)


def discrete_laplace_variance(scale: float) -> float:
    """Return the variance of the discrete Laplace distribution: 2 p / (1 − p)², p = exp(−1 / scale)."""
    p = math.exp(-1 / scale)
    return 2 * p / (1 - p) ** 2


def _total(configuration: Configuration, days: Iterable[ProviderDay]) -> ProviderDay:
    numbers = [astuple(day)[2:] for day in days]
    return ProviderDay(configuration, 0, *(sum(column) for column in zip(*numbers, strict=True)))


def _noisy(tenant: str, provider: str, day: ProviderDay, privacy: Privacy) -> ProviderDay:
    """Return a day with noise that depends on the secret and on all that it is added to."""
    key = json.dumps([tenant, provider, astuple(day.configuration), *astuple(day)[1:], privacy.epsilon])
    seed = hmac.new(privacy.secret, key.encode(), hashlib.sha256).digest()
    rng = np.random.default_rng(int.from_bytes(seed, "big"))
    scale = _RELEASED / (privacy.epsilon or math.inf)
    noise = {
        **{name: _draw(rng, scale) for name in _COUNTS},
        **{name: _draw(rng, scale * _UNITS) / _UNITS for name in _SUMS},
    }
    exact: Mapping[str, float] = {
        **{name: getattr(day, name) for name in _COUNTS},
        **{name: round(getattr(day, name) * _UNITS) / _UNITS for name in _SUMS},
    }
    changed: dict[str, Any] = {name: exact[name] + noise[name] for name in noise}
    return replace(day, **changed)


def _draw(rng: np.random.Generator, scale: float) -> int:
    """Draw from the discrete Laplace distribution: the difference of two geometric draws."""
    p = -math.expm1(-1 / scale)
    return int(rng.geometric(p)) - int(rng.geometric(p))


def _exposure(total: ProviderDay, variance: float, *, private: bool) -> ConfigurationExposure:
    found = max(0, total.num_found)
    targeted = min(max(0, total.num_targeted), found)
    owed = total.target - total.exposure_targeted
    return ConfigurationExposure(
        total.configuration,
        found,
        min(max(0, total.num_shown), found) if private else total.num_shown,
        min(max(0, total.num_cited), found) if private else total.num_cited,
        exposure=_estimate(found, total.exposure, total.exposure_squares, variance, low=0.0),
        target=_estimate(targeted, total.target, total.target_squares, variance, low=0.0),
        owed=_estimate(targeted, owed, total.owed_squares, variance, low=-1.0, sums=2),
    )


def _estimate(
    count: int, total: float, squares: float, variance: float, *, low: float, sums: int = 1
) -> Estimate:
    """Return the mean of shares in [``low``, 1] with its interval, which covers noise in total and count.

    ``variance`` is that of the noise in the count and in each of the ``sums`` that make up the total. The
    mean is a ratio: noise x in the total and y in the count move it by (x − mean · y) / count.
    """
    if not count:
        return Estimate(None, None, None, 0, 0)
    mean = min(max(total / count, low), 1.0)
    if count == 1:
        return Estimate(mean, None, None, 1, 0)
    spread = max(0.0, squares - count * mean**2)
    noise = (sums + mean**2) * variance
    return Estimate(mean, *bounded_interval(count, mean, spread, low=low, high=1.0, noise=noise), count, 0)
