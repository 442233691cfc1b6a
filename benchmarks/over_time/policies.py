"""Dial, program and controller on the same asks: exact exposure, and the contexts that are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq

from benchmarks.over_time.sets import Pool
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure_balance import ExposureBalance, balanced_weights
from evenmesh_core.group_shares import ShareBound, draw, shares_policy
from evenmesh_core.intervals import student_interval
from evenmesh_core.plackett_luce import inclusion_probabilities, log_weights

K: Final = 5
"""Passages of a context."""
STEP: Final = 1_000
"""Asks after which unfairness is read."""
SEED: Final = 26
DIALS: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 100.0)
SLACKS: Final = (0.0, 0.5, 1.0, 2.0)
STRENGTHS: Final = (0.05, 0.25, 0.6, 1.0)
CONTROLLED_DIAL: Final = 8.0
LIMIT: Final = 0.25

_DIAL_RANGE: Final = (0.25, 100.0)
_GRID: Final = 16


@dataclass(frozen=True)
class Shown:
    """What a policy does for one ask: the probability of each candidate, and how a context is drawn."""

    inclusion: FloatArray
    draw: Callable[[np.random.Generator], Sequence[int]]


Policy = Callable[[Pool, ExposureBalance], Shown]


@dataclass(frozen=True)
class Beside:
    """A dial of the disparity that a policy has, and the utility of the policy minus that of the dial.

    Attributes:
        alpha: of the dial.
        disparity: of the dial.
        difference: mean over questions, with its interval.
    """

    alpha: float
    disparity: float
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Outcome:
    """What a policy did; sequences have an element for each 1,000 asks.

    Attributes:
        policy: dial, program or controller.
        setting: of it.
        utility: useful passages in a context over the most possible, mean over asks, with its interval.
        disparity: of the mean exposure of each question, Σ π̄² / k, mean over questions.
        unfairness: half the sum over providers of |given − deserved| / asks.
        largest: the largest of these differences of one provider.
        near: part of what is deserved that providers deserve who got it to 5 per cent of it.
        loss: part of the largest possible relevance by score that is given up.
        beside: the dial of the same disparity; None for a dial.
    """

    policy: str
    setting: float
    utility: float
    low: float
    high: float
    disparity: float
    unfairness: Sequence[float]
    largest: Sequence[float]
    near: Sequence[float]
    loss: Sequence[float]
    beside: Beside | None = None


@dataclass
class Ledger:
    """Utility and exposure of a policy, ask by ask."""

    utilities: list[float] = field(default_factory=list)
    unfairness: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    near: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    _relevance: list[float] = field(default_factory=lambda: [0.0, 0.0])
    _owed: dict[str, list[float]] = field(default_factory=dict)
    _exposure: dict[Pool, FloatArray] = field(default_factory=dict)
    _asked: dict[Pool, int] = field(default_factory=dict)

    def add(self, pool: Pool, inclusion: FloatArray) -> None:
        """Count one ask."""
        self.utilities.append(float(inclusion @ pool.useful) / most_useful(pool))
        for provider, deserved, given in zip(
            pool.providers, pool.merit.tolist(), (inclusion / K).tolist(), strict=True
        ):
            sums = self._owed.setdefault(provider, [0.0, 0.0])
            sums[0] += deserved
            sums[1] += given
        relevance = pool.relevance
        self._relevance[0] += float(inclusion @ relevance)
        self._relevance[1] += float(np.sort(relevance)[-K:].sum())
        self._exposure[pool] = self._exposure.get(pool, 0.0) + inclusion
        self._asked[pool] = self._asked.get(pool, 0) + 1
        if len(self.utilities) % STEP == 0:
            target, exposure = np.array(list(self._owed.values())).T
            apart = np.abs(target - exposure)
            self.unfairness.append(float(apart.sum()) / 2 / len(self.utilities))
            self.largest.append(float(apart.max()) / len(self.utilities))
            self.near.append(float(target[apart <= 0.05 * target].sum() / target.sum()))
            self.loss.append(1 - self._relevance[0] / self._relevance[1])

    def balance(self, pool: Pool) -> ExposureBalance:
        """Return what the providers of a pool deserved and were given until now."""
        names = [one for one in dict.fromkeys(pool.providers) if one in self._owed]
        target, exposure = np.array([self._owed[one] for one in names]).reshape(-1, 2).T
        return ExposureBalance(names, target, exposure)

    @property
    def useful(self) -> dict[Pool, float]:
        """Return the mean utility of each question that was asked."""
        return {
            one: float(given @ one.useful) / self._asked[one] / most_useful(one)
            for one, given in self._exposure.items()
        }

    def outcome(self, policy: str, setting: float) -> Outcome:
        """Return what came of it."""
        found = student_interval(self.utilities)
        return Outcome(
            policy,
            setting,
            found.value,
            found.low,
            found.high,
            disparity([self._exposure[one] / self._asked[one] for one in self._exposure]),
            self.unfairness,
            self.largest,
            self.near,
            self.loss,
        )


def most_useful(pool: Pool) -> float:
    """Return the most useful passages that a context can have."""
    return min(float(K), float(pool.useful.sum()))


def disparity(exposures: Sequence[FloatArray]) -> float:
    """Return Σ π² / k, mean over questions: 1 where the same passages are always shown."""
    return float(np.mean([one @ one / min(K, len(one)) for one in exposures]))


def dial(alpha: float) -> Policy:
    """Return the policy that samples with an α."""
    known: dict[Pool, Shown] = {}

    def shown(pool: Pool, _balance: ExposureBalance) -> Shown:
        if pool not in known:
            known[pool] = _sampled(log_weights(pool.scores, alpha))
        return known[pool]

    return shown


def program(slack: float) -> Policy:
    """Return the policy of a linear program: no provider above (1 + slack) times what it deserves."""
    known: dict[Pool, Shown] = {}

    def shown(pool: Pool, _balance: ExposureBalance) -> Shown:
        if pool not in known:
            bounds = []
            for provider in dict.fromkeys(pool.providers):
                members = [one == provider for one in pool.providers]
                share = float(pool.merit[members].sum())
                bounds.append(ShareBound(members, at_most=min(1.0, (1 + slack) * share)))
            policy = shares_policy(pool.relevance, bounds, k=K)
            known[pool] = Shown(
                policy.inclusion, lambda rng: draw(policy, num_rankings=1, rng=rng).rankings[0].tolist()
            )
        return known[pool]

    return shown


def controller(strength: float) -> Policy:
    """Return the policy that adds what providers are owed to their scores."""

    def shown(pool: Pool, balance: ExposureBalance) -> Shown:
        offsets = balance.offsets(strength=strength, limit=LIMIT)
        moved = [offsets.get(one, 0.0) for one in pool.providers]
        return _sampled(balanced_weights(pool.scores, moved, CONTROLLED_DIAL))

    return shown


def settings() -> list[tuple[str, float, Policy]]:
    """Return every policy of the study with its name and setting."""
    return [
        *(("dial", one, dial(one)) for one in DIALS),
        *(("program", one, program(one)) for one in SLACKS),
        *(("controller", one, controller(one)) for one in STRENGTHS),
    ]


def follow(
    asked: Sequence[Pool], policy: Policy, seen: Callable[[int, Pool, Shown], None] = lambda *_: None
) -> Ledger:
    """Return what a policy does on asks in their order, and give each to `seen`."""
    ledger = Ledger()
    for number, pool in enumerate(asked):
        shown = policy(pool, ledger.balance(pool))
        seen(number, pool, shown)
        ledger.add(pool, shown.inclusion)
    return ledger


def simulate(asked: Sequence[Pool]) -> list[Outcome]:
    """Return what each policy does on the same asks in the same order."""
    dials, made = EqualDials(asked), []
    for name, setting, policy in settings():
        ledger = follow(asked, policy)
        found = ledger.outcome(name, setting)
        if name != "dial":
            found = replace(found, beside=dials.beside(ledger, found.disparity))
        made.append(found)
    return made


class EqualDials:
    """Dials by their disparity over the questions that are asked.

    Args:
        asked: pools of the asks.
    """

    def __init__(self, asked: Sequence[Pool]) -> None:
        self._pools = list(dict.fromkeys(asked))
        self._grid = np.geomspace(*_DIAL_RANGE, _GRID)
        found = [disparity([self._inclusion(one, alpha) for one in self._pools]) for alpha in self._grid]
        self._curve = PchipInterpolator(np.log(self._grid), found)

    def find(self, wanted: float) -> float:
        """Return the α of a disparity, or the nearest there is, to four digits.

        The disparity is interpolated over log α.
        """
        ends = np.log(_DIAL_RANGE)
        wanted = float(np.clip(wanted, self._curve(ends[0]), self._curve(ends[1])))
        return float(f"{np.exp(brentq(lambda at: self._curve(at) - wanted, *ends)):.4g}")

    def beside(self, ledger: Ledger, wanted: float) -> Beside:
        """Return what a policy with a disparity has beside the dial of the same one."""
        alpha = self.find(wanted)
        shown = {one: self._inclusion(one, alpha) for one in ledger.useful}
        differences = [
            mean - float(shown[one] @ one.useful) / most_useful(one) for one, mean in ledger.useful.items()
        ]
        found = student_interval(differences)
        return Beside(alpha, disparity(list(shown.values())), found.value, found.low, found.high)

    @staticmethod
    def _inclusion(pool: Pool, alpha: float) -> FloatArray:
        return inclusion_probabilities(log_weights(pool.scores, alpha), k=K)


def context(shown: Shown, number: int) -> tuple[int, ...]:
    """Return the context of the ask with a number, as places in its pool; the same noise for each policy."""
    return tuple(sorted(shown.draw(np.random.default_rng([SEED, number]))))


def _sampled(weights: FloatArray) -> Shown:
    return Shown(inclusion_probabilities(weights, k=K), partial(_top, weights))


def _top(weights: FloatArray, rng: np.random.Generator) -> Sequence[int]:
    found: list[int] = np.argsort(-(weights + rng.gumbel(size=len(weights))))[:K].tolist()
    return found
