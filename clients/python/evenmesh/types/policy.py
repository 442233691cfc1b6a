"""Targets of groups, fairness over time, and the policy that rankings were drawn from."""

from dataclasses import dataclass
from typing import Literal

PolicyKind = Literal["plackett_luce", "decomposed"]
"""How rankings are drawn: passage by passage at a fairness dial, or from a decomposed linear program."""

RelevanceKind = Literal["probability", "normalized_score"]
"""What stands for relevance: the reranker's probability, or the retriever's score, 0 (last) to 1 (best)."""


@dataclass(frozen=True, slots=True)
class GroupShare:
    """A bound on the share of a group in the expected exposure of a context.

    Attributes:
        attribute: attribute of the passages, such as ``provider``.
        value: its value in the group; empty means a bound for each value, such as every provider.
        at_least: smallest share, 0 to 1; this or ``at_most`` must be given.
        at_most: largest share, 0 to 1.
    """

    attribute: str
    value: str = ""
    at_least: float | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class GroupShareOutcome:
    """The share of a group in the expected exposure of a context.

    Attributes:
        bound: the bound, with its value.
        share: expected share, 0 to 1.
        feasible_low: smallest share that the group can have with these passages.
        feasible_high: largest share that it can have.
        kept: whether the bound is kept, to 0.001.
    """

    bound: GroupShare
    share: float
    feasible_low: float
    feasible_high: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Balance:
    """A controller of exposure over time: scores change by what their providers are owed.

    Attributes:
        strength: change of a normalised score, whose range is 1, for each context owed, 0 to 10; 0.05
            without it.
        limit: largest change either way, 0 to 1; 0.25 without it.
        half_life_days: days after which an ask counts half, 0.01 to 3650; 30 without it.
    """

    strength: float | None = None
    limit: float | None = None
    half_life_days: float | None = None


@dataclass(frozen=True, slots=True)
class BalanceOffset:
    """Amount that a controller added to the scores of one provider's passages.

    Attributes:
        provider: the provider.
        offset: amount added, in score ranges, -1 to 1.
        owed: exposure deserved minus exposure given, in contexts, faded by age.
    """

    provider: str
    offset: float
    owed: float


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy that reaches a target, and its exact expectations (not means over the drawn rankings).

    Attributes:
        kind: how rankings are drawn.
        target_disparity: the disparity that was wanted; None if it was another target.
        target_relevance_loss: the loss of relevance that was allowed; None if it was another target.
        target_shares: the bounds on shares that were wanted; empty if it was another target.
        alpha: fairness dial that was found, 0 to 100; None with shares.
        disparity: expected EE-D of its bound, 0 to 1.
        relevance: expected relevance of a context, 0 to k.
        best_relevance: relevance of the context without sampling.
        relevance_kind: kind of the values that the two sum.
        reached: whether the target is reached, to 0.001; otherwise this is the nearest policy there is.
        note: one line on a target that is not reached; empty if it is.
        shares: result of each bound; a bound for each value has one for each value that could break it.
        balance: the controller of exposure over time; None without one.
        offsets: amounts added to scores, for each provider of ranked passages that got one.
    """

    kind: PolicyKind
    target_disparity: float | None
    target_relevance_loss: float | None
    target_shares: tuple[GroupShare, ...]
    alpha: float | None
    disparity: float
    relevance: float
    best_relevance: float
    relevance_kind: RelevanceKind
    reached: bool
    note: str
    shares: tuple[GroupShareOutcome, ...]
    balance: Balance | None = None
    offsets: tuple[BalanceOffset, ...] = ()

    @property
    def relevance_loss(self) -> float:
        """Share of the best context's relevance that is given up in expectation; 0 if it has none."""
        return 1 - self.relevance / self.best_relevance if self.best_relevance else 0.0
