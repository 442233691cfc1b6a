"""How probable it is that an answer is right: a calibrated function of the answer's log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

MOST_SLOPE: Final = 100.0
"""Largest slope, and largest size of an intercept: beyond, every answer would have the same confidence."""

_SUREST: Final = 1e-6
"""How far from 1 a probability is at least taken to be: rounding may make it 1, of infinite log-odds."""
_STEPS: Final = 50
_BINS: Final = 10
_RIDGE: Final = 1e-3
"""Pulls a fit to questions that all went alike towards a finite slope."""


@dataclass(frozen=True, slots=True)
class Sigmoid:
    """A probability, sigmoid(slope · x + intercept) (Platt, 1999).

    ``slope`` [0, 100]: more log-probability never means less confidence; ``intercept`` [-100, 100].
    """

    slope: float
    intercept: float

    def __post_init__(self) -> None:
        """Check both ranges; raise ValueError."""
        if not 0.0 <= self.slope <= MOST_SLOPE:
            raise ValueError(f"slope must be in [0, {MOST_SLOPE:g}], is {self.slope}")
        if not -MOST_SLOPE <= self.intercept <= MOST_SLOPE:
            raise ValueError(f"intercept must be in [-{MOST_SLOPE:g}, {MOST_SLOPE:g}], is {self.intercept}")

    def __call__(self, value: float) -> float:
        """Return the probability at ``value``, in [0, 1]."""
        exponent = self.slope * value + self.intercept
        if exponent < 0:
            grown = math.exp(max(exponent, -700.0))
            return grown / (1.0 + grown)
        return 1.0 / (1.0 + math.exp(-exponent))


@dataclass(frozen=True, slots=True)
class Confidence:
    """The calibration of a reader: one function for its spans, one for its abstentions."""

    span: Sigmoid
    abstention: Sigmoid

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Confidence:
        """Return the calibration that a configuration states: a slope and an intercept each.

        Raises:
            ValueError: one is missing, or out of range.
        """
        try:
            return cls(*(Sigmoid(*map(float, settings[name])) for name in ("span", "abstention")))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"must have span and abstention, a slope and an intercept each: {error}"
            ) from None

    def settings(self) -> dict[str, list[float]]:
        """Return it as a configuration states it."""
        return {
            name: [one.slope, one.intercept]
            for name, one in (("span", self.span), ("abstention", self.abstention))
        }

    def __call__(self, log_probabilities: Sequence[float], *, abstains: bool) -> float:
        """Return the probability that an answer is right, in [0, 1].

        Args:
            log_probabilities: of its tokens, its end included, in nats; not empty.
            abstains: whether it is the abstention; that is decided by its first token, the others are forced.
        """
        score = evidence(log_probabilities, abstains=abstains)
        return self.abstention(score) if abstains else self.span(score)


def evidence(log_probabilities: Sequence[float], *, abstains: bool) -> float:
    """Return what the confidence of an answer is a function of.

    Of a span the log-odds of its tokens' geometric mean probability, so that a long answer is not less
    probable for its length; of an abstention those of its first token, in nats.
    """
    mean = log_probabilities[0] if abstains else math.fsum(log_probabilities) / len(log_probabilities)
    mean = min(mean, -_SUREST)
    return mean - math.log(-math.expm1(mean))


def fit(values: Sequence[float], right: Sequence[bool]) -> Sigmoid:
    """Return the most likely function of ``values`` to the probability of being right, by Newton's method.

    Raises:
        ValueError: there are no values, or a greater one does not mean more often right.
    """
    if not values:
        raise ValueError("there are no answers to calibrate on")
    x = np.stack([np.asarray(values, dtype=np.float64), np.ones(len(values))], axis=1)
    target = np.asarray(right, dtype=np.float64)
    weights = np.zeros(2)
    for _ in range(_STEPS):
        found = 1.0 / (1.0 + np.exp(-np.clip(x @ weights, -50, 50)))
        slopes = x.T @ (target - found) - _RIDGE * weights
        curvature = (x * (found * (1.0 - found))[:, None]).T @ x + _RIDGE * np.eye(2)
        weights = weights + np.linalg.solve(curvature, slopes)
    return Sigmoid(round(float(weights[0]), 4), round(float(weights[1]), 4))


def expected_calibration_error(confidences: Sequence[float], right: Sequence[bool]) -> float:
    """Return the mean gap of confidence and accuracy over ten bins of equal width (Naeini et al., 2015).

    Raises:
        ValueError: there are no answers.
    """
    if not confidences:
        raise ValueError("there are no answers to compare")
    given, hits = np.asarray(confidences, dtype=np.float64), np.asarray(right, dtype=np.float64)
    bin_of = np.minimum((given * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bin_of, weights=given - hits, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(given))
