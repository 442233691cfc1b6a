"""Rank every agent's candidates with a model, as the reranker computes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.stats import kendalltau

from benchmarks.agent_study.answering import Agents
from benchmarks.agent_study.sets import TEST, World
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_reranker.backends.loading import loader
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import pairs

DEPTH: Final = 100
"""Candidates of BM25 that are ranked."""
SHALLOW: Final = 20
"""As many as training looks at."""
LONGEST: Final = 144
"""Tokens of a pair."""

Orders = Mapping[str, Mapping[str, Sequence[int]]]
"""By agent and question the candidates' places in BM25's order, best first."""


def rank(
    world: World, agents: Agents, model: Path, *, conversions: Path, ids: bool, depth: int = DEPTH
) -> Orders:
    """Return how a model ranks the candidates of each agent and question.

    Args:
        world: what is asked.
        agents: find the candidates.
        model: folder of a cross-encoder.
        conversions: folder for what OpenVINO computes.
        ids: whether the model reads who asks.
        depth: candidates of BM25.
    """
    computed = loader(
        "cpu",
        "auto",
        engine="auto",
        threads=1,
        parallel=1,
        conversions=Conversions(conversions),
        max_length=LONGEST,
    ).full(model, "study", provenance="study", created_at=datetime.now(UTC))
    orders: dict[str, dict[str, list[int]]] = {}
    for agent in world.plan.agents:
        reads = agent.agent if ids else Agent()
        of_agent = orders[agent.name] = {}
        for task in world.plan.of(agent, TEST):
            found = agents.found(task.question, depth)
            texts = [pairs.passage_text(one.title, one.text) for one in found]
            rows = computed.rows(task.question, texts, reads)
            scores = np.array(pairs.probabilities(computed, rows, [None] * len(rows)))
            # Equal scores keep BM25's order.
            of_agent[task.id] = np.argsort(-scores, kind="stable").tolist()
    return orders


def rows(orders: Orders, before: Orders | None = None) -> Iterator[dict[str, Any]]:
    """Yield what comes first for each agent and question, as ``records.write`` takes it.

    Args:
        orders: of a model.
        before: that ``tau`` compares with; None: BM25's.
    """
    for agent, of_agent in orders.items():
        for query, order in of_agent.items():
            other = list(range(len(order))) if before is None else before[agent][query]
            tau = kendalltau(np.argsort(order), np.argsort(other)).statistic
            yield {"agent": agent, "query": query, "first": order[0], "tau": tau}
