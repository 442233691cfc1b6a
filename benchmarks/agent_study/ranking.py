"""Rank every agent's candidates with a model, as the reranker computes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
LONGEST: Final = 144
"""Tokens of a pair."""


def rank(
    world: World, agents: Agents, model: Path, *, conversions: Path, ids: bool, start: Path
) -> Iterator[dict[str, Any]]:
    """Yield what a model ranks first for each agent and query, as :func:`records.write` takes it.

    Args:
        world: what is asked.
        agents: find the candidates.
        model: folder of a cross-encoder.
        conversions: folder for what OpenVINO computes.
        ids: whether the model reads who asks.
        start: file of the rankings that ``tau`` compares with; the first model that ranks writes it, and its own
            are compared with BM25's order.
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
    before: dict[str, list[int]] = json.loads(start.read_bytes()) if start.is_file() else {}
    made: dict[str, list[int]] = {}
    for agent in world.plan.agents:
        reads = agent.agent if ids else Agent()
        for task in world.plan.of(agent, TEST):
            found = agents.found(task.question, DEPTH)
            texts = [pairs.passage_text(one.title, one.text) for one in found]
            rows = computed.rows(task.question, texts, reads)
            scores = np.array(pairs.probabilities(computed, rows, [None] * len(rows)))
            # Equal scores keep BM25's order.
            order = np.argsort(-scores, kind="stable").tolist()
            key = f"{agent.name} {task.id}"
            made[key] = order
            other = before.get(key) or list(range(len(order)))
            tau = kendalltau(np.argsort(order), np.argsort(other)).statistic
            yield {"agent": agent.name, "query": task.id, "first": order[0], "tau": tau}
    if not before:
        start.parent.mkdir(parents=True, exist_ok=True)
        start.write_text(json.dumps(made))
