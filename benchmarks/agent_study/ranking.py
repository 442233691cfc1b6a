"""Rank every agent's candidates with a model, as the reranker computes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.stats import kendalltau

from benchmarks.agent_study.answering import BM25, Agents
from benchmarks.agent_study.sets import TEST, World
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_reranker.backends.loading import loader
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import pairs
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_training.ium.fusing import Scored

DEPTH: Final = 100
"""Candidates of BM25 that are ranked."""
SHALLOW: Final = 20
"""As many as training looks at."""
LONGEST: Final = 144
"""Tokens of a pair."""

Orders = Mapping[str, Mapping[str, Sequence[int]]]
"""By agent and question the candidates' places in BM25's order, best first."""
Probabilities = Mapping[str, Mapping[str, Sequence[float]]]
"""By agent and question a model's probability of each candidate, in BM25's order."""


def score(
    world: World,
    agents: Agents,
    model: Path,
    *,
    conversions: Path,
    ids: bool,
    depth: int = DEPTH,
    retriever: str = BM25,
) -> Probabilities:
    """Return a model's probabilities of the candidates of each agent and question.

    Args:
        world: what is asked.
        agents: find the candidates.
        model: folder of a cross-encoder.
        conversions: folder for what OpenVINO computes.
        ids: whether the model reads who asks.
        depth: candidates of each question.
        retriever: finds them.
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
    found_of: dict[str, dict[str, list[float]]] = {}
    for agent in world.plan.agents:
        reads = agent.agent if ids else Agent()
        of_agent = found_of[agent.name] = {}
        for task in world.plan.of(agent, TEST):
            found = agents.search(task.question, depth, retriever).passages
            texts = [pairs.passage_text(one.title, one.text) for one in found]
            rows = computed.rows(task.question, texts, reads)
            of_agent[task.id] = list(pairs.probabilities(computed, rows, [None] * len(rows)))
    return found_of


def fused(
    world: World, agents: Agents, scores: Probabilities, fusions: Fusions, *, ids: bool, retriever: str = BM25
) -> Probabilities:
    """Return what an ask scores the candidates.

    Args:
        world: what is asked.
        agents: find the candidates.
        scores: of the model alone.
        fusions: of the model.
        ids: whether agents have fusions of their own.
        retriever: first stage.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for agent in world.plan.agents:
        how = fusions.of(agent.agent if ids else Agent())
        of_agent = found[agent.name] = {}
        for task in world.plan.of(agent, TEST):
            values = scores[agent.name][task.id]
            candidates = agents.search(task.question, len(values), retriever)
            names = [one.id for one in candidates.passages]
            if values:
                fused = Scored.of(candidates, dict(zip(names, values, strict=True))).scores(how)
                values = [fused[name] for name in names]
            of_agent[task.id] = list(values)
    return found


def ordered(scores: Probabilities) -> Orders:
    """Return how scores rank the candidates; equal ones keep BM25's order."""
    return {
        agent: {
            query: np.argsort(-np.array(values), kind="stable").tolist() for query, values in of_agent.items()
        }
        for agent, of_agent in scores.items()
    }


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
