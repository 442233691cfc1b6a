"""Choose how an agent's lists are fused with the first stage's, by what the agent finds useful.

The chosen numbers are few: the weight of the first stage's standardized scores and that of the support of
similar passages, each from a short list. So a few dozen judged queries of an agent can tell them apart, and
no weight of the model changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from evenmesh_core.arrays import FloatArray
from evenmesh_core.fusion import fused_log_odds, platt_scaling, standardized
from evenmesh_core.neighbors import text_vectors
from evenmesh_reranker.domain import Agent, Fusion
from evenmesh_reranker.models.fusions import Fusions, fuse
from evenmesh_training.ium.result_cache import Candidates

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WEIGHTS: Final = (0.25, 0.5, 1.0, 2.0, 4.0)
NEIGHBORS: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
CHOICES: Final = (Fusion(0.0), *(Fusion(weight, near) for weight in WEIGHTS for near in NEIGHBORS))
"""What is tried beside what the model had before: the model alone, and each weight with each of neighbors."""
_STANDARD: Final = 20
"""Passages whose mean and deviation standardize the first stage's scores, as in an ask."""


@dataclass(frozen=True)
class Scored:
    """A query's candidates, at least one, as a first stage and a model score them.

    Attributes:
        ids: of the candidates, best of the first stage first.
        chances: the model's probability of each, [n].
        first: the first stage's standardized score of each, [n].
        vectors: of their texts.
    """

    ids: tuple[str, ...]
    chances: FloatArray
    first: FloatArray
    vectors: csr_array = field(repr=False)

    @classmethod
    def of(cls, found: Candidates, scores: Mapping[str, float]) -> Scored:
        """Return it for candidates and a model's scores by id.

        Scores of a first stage that are not all finite say nothing, as in an ask.
        """
        first = np.array(found.scores, dtype=np.float64)
        if not np.isfinite(first).all():
            first = np.zeros(len(first))
        return cls(
            tuple(one.id for one in found.passages),
            np.array([scores[one.id] for one in found.passages]),
            standardized(first, first[:_STANDARD]),
            text_vectors([f"{one.title} {one.text}" for one in found.passages]),
        )

    def log_odds(self, fusion: Fusion) -> FloatArray:
        """Return the fused log-odds before calibration, [n]."""
        return fused_log_odds(
            self.chances, self.first, fusion.weight, neighbors=fusion.neighbors, vectors=self.vectors
        )

    def order(self, fusion: Fusion) -> list[int]:
        """Return the places of the candidates, best first; equal ones as the first stage has them."""
        # The model alone orders as an ask does: log-odds have no order where a model is all but sure.
        values = self.log_odds(fusion) if fusion.weight else self.chances
        best: list[int] = np.argsort(-values, kind="stable").tolist()
        return best

    def scores(self, fusion: Fusion) -> dict[str, float]:
        """Return what an ask scores each candidate by its id, best first."""
        values = fuse(self.chances, self.first, fusion, self.vectors) if fusion.weight else self.chances
        return {self.ids[at]: float(values[at]) for at in np.argsort(-values, kind="stable").tolist()}


class JudgedQuery(Protocol):
    """A query of an agent, and what the agent judged of its candidates."""

    @property
    def agent(self) -> Agent:
        """The agent, as the model reads it."""

    @property
    def scored(self) -> Scored:
        """The candidates."""

    @property
    def utilities(self) -> Mapping[str, float]:
        """Of judged candidates by id, [0, 1]."""

    def value(self, fusion: Fusion) -> float:
        """Return what the order that a fusion gives to the candidates is worth to the agent, [0, 1]."""


@dataclass(frozen=True)
class AnsweredQuery:
    """A query of an agent that was asked to answer from candidates, each alone.

    Attributes:
        agent: as the model reads it.
        scored: the candidates.
        utilities: of passages that the agent answered from, by id, [0, 1]; those that it refused are missing
            and count 0.
        shown: passages that the agent is shown.
    """

    agent: Agent
    scored: Scored
    utilities: Mapping[str, float]
    shown: int

    def value(self, fusion: Fusion) -> float:
        """Return what the shown passages are worth, [0, 1]: their mean utility, discounted by rank (DCG)."""
        best = self.scored.order(fusion)[: self.shown]
        discounts = 1.0 / np.log2(np.arange(len(best)) + 2.0)
        worth = [self.utilities.get(self.scored.ids[at], 0.0) for at in best]
        return float(discounts @ np.array(worth) / discounts.sum())


def needed(scored: Scored, shown: int, before: Fusion) -> list[str]:
    """Return the candidates that an agent must judge: those that are shown by any choice."""
    places = {at for one in (before, *CHOICES) for at in scored.order(one)[:shown]}
    return [scored.ids[at] for at in sorted(places)]


def best(values: Sequence[FloatArray]) -> int:
    """Return the choice that is worth most more than the first one, less a standard error; else the first.

    An agent of few queries stays with the first, unless they agree. The mean is over agents, each of which
    counts alike.

    Args:
        values: of each agent a matrix [queries, choices]; one agent at least, each with a query or more.
    """
    gains = [one - one[:, :1] for one in values]
    means = np.mean([one.mean(axis=0) for one in gains], axis=0)
    # One query says nothing of how much queries differ.
    errors = [one.var(axis=0, ddof=1) / len(one) if len(one) > 1 else means + np.inf for one in gains]
    surely = means - np.sqrt(np.sum(errors, axis=0)) / len(gains)
    # The first has no error against itself, and among equal ones the first and smallest is chosen.
    surely[0] = 0.0
    return int(np.argmax(surely.round(12)))


def choose(judged: Sequence[JudgedQuery], before: Fusions, *, together: bool) -> Fusions:
    """Return the fusion of each agent that has queries, and that of all others.

    Args:
        judged: queries. Those of an agent without ids count for all others.
        before: what is kept, with its calibration, where queries do not show another one to be better, and
            for agents that have no queries here.
        together: whether others have what is best for all of these agents together.

    Returns:
        Fusions that are calibrated by the judged passages (:func:`evenmesh_core.fusion.platt_scaling`).
    """
    of_agent: dict[Agent, list[JudgedQuery]] = {}
    for one in judged:
        of_agent.setdefault(one.agent, []).append(one)
    values = {
        agent: np.array([[one.value(choice) for choice in (before.of(agent), *CHOICES)] for one in mine])
        for agent, mine in of_agent.items()
    }
    shared = best(list(values.values())) if values and (together or Agent() in values) else 0
    others = _calibrated(CHOICES[shared - 1], judged) if shared else before.others
    own = dict(before.own)
    for agent, mine in of_agent.items():
        chosen = best([values[agent]])
        if agent != Agent():
            fusion = before.of(agent)
            if chosen:
                fusion = others if chosen == shared else _calibrated(CHOICES[chosen - 1], mine)
            own[agent.task_id, agent.model_id] = fusion
    return Fusions(others, {ids: fusion for ids, fusion in own.items() if fusion != others})


def _calibrated(fusion: Fusion, judged: Sequence[JudgedQuery]) -> Fusion:
    odds: list[float] = []
    worth: list[float] = []
    for one in judged:
        values = dict(zip(one.scored.ids, one.scored.log_odds(fusion).tolist(), strict=True))
        odds += [values[name] for name in one.utilities]
        worth += one.utilities.values()
    if not odds or not fusion.weight:
        return fusion
    slope, intercept = platt_scaling(np.array(odds), np.array(worth))
    return replace(fusion, slope=slope, intercept=intercept)
