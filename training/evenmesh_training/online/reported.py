"""What an agent's feedback says of lists that it was not shown.

An agent judges what it was shown. Another list shows other passages, of which it said nothing, and one that
orders the judged ones better may bring worse ones up from below. Parameters that are trained move few
passages, and are compared by the order of the judged ones. A fusion moves many: on real queries, fusions that
order the judged ones better showed less of use (docs/studies/online.md). Where one is compared, a passage
that was neither judged nor is shown now counts as useless, so no list is worth less than what is said of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenmesh_core.arrays import FloatArray
from evenmesh_reranker.domain import Agent, Fusion
from evenmesh_training.ium.fusing import Scored
from evenmesh_training.online.comparison import order_value


@dataclass(frozen=True)
class ReportedQuery:
    """A query of an agent, and what its feedback says of candidates.

    Attributes:
        agent: the agent.
        scored: the candidates.
        utilities: of judged candidates by id, [0, 1]; at least one.
        fused: whether a first stage scored the candidates.
        gains: what each candidate counts, [n], nan where it does not; see :func:`with_gains`.
    """

    agent: Agent
    scored: Scored
    utilities: Mapping[str, float]
    fused: bool
    gains: FloatArray

    def order(self, fusion: Fusion) -> list[int]:
        """Return the places of the candidates, best first."""
        return self.scored.order(fusion if self.fused else Fusion(0.0))

    def value(self, fusion: Fusion) -> float:
        """Return :func:`.comparison.order_value` of as many of the candidates that count as were judged."""
        gains = self.gains[self.order(fusion)]
        counted = gains[~np.isnan(gains)]
        return order_value(-np.arange(len(counted)), counted, shown=len(self.utilities))


def with_gains(
    reported: Sequence[ReportedQuery], fusion: Fusion, *, judged_alone: bool
) -> list[ReportedQuery]:
    """Return queries with what each candidate counts.

    A judged one counts its utility. Another one that is shown now counts the mean of what was judged, and all
    others 0.

    Args:
        reported: queries of one agent.
        fusion: by which lists are shown now.
        judged_alone: whether only what was judged counts, instead.
    """
    judged = [useful for one in reported for useful in one.utilities.values()]
    found = []
    for one in reported:
        gains = np.full(len(one.scored.ids), np.nan if judged_alone else 0.0)
        if not judged_alone:
            gains[one.order(fusion)[: len(one.utilities)]] = np.mean(judged)
        gains[[one.scored.ids.index(id_) for id_ in one.utilities]] = list(one.utilities.values())
        found.append(replace(one, gains=gains))
    return found
