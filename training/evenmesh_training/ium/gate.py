"""Questions of no agent, on which what was learned from an agent's feedback must not rank worse than before.

Learning from agents makes a model forget. An agent's own queries do not show that; these do: 32 questions
about evenmesh's documentation with the 20 sections that the hybrid finds for each, as
``python -m benchmarks.rerank_table.gate`` wrote them.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Protocol

import numpy as np

from evenmesh_core.neighbors import text_vectors
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_reranker.domain import Agent, Fusion, Passage
from evenmesh_reranker.models.fusions import fuse

FILE = "gate.json.gz"


class Ranking(Protocol):
    """What ranks for an agent."""

    def fusion(self, agent: Agent) -> Fusion:
        """Return how an agent's scores are fused with those of a first stage."""

    def scores(self, query: str, passages: Sequence[Passage], agent: Agent) -> list[float]:
        """Return the score of each passage, [0, 1]."""


@dataclass(frozen=True, slots=True)
class GateQuestion:
    """A question and its candidates.

    Attributes:
        query: the question.
        passages: the candidates, best of the first stage first.
        first: their standardized scores.
        relevant: ids of the passages that answer it.
    """

    query: str
    passages: tuple[Passage, ...]
    first: tuple[float, ...]
    relevant: frozenset[str]


class Gate:
    """Questions that parameters are measured on before they serve."""

    def __init__(self, questions: tuple[GateQuestion, ...]) -> None:
        self._questions = questions

    @classmethod
    def bundled(cls) -> Gate:
        """Return the one that ships."""
        packed = resources.files("evenmesh_training.ium").joinpath(FILE).read_bytes()
        data = json.loads(gzip.decompress(packed))
        passages = [Passage(*one) for one in data["passages"]]
        return cls(
            tuple(
                GateQuestion(
                    one["query"],
                    tuple(passages[at] for at in one["candidates"]),
                    tuple(one["first"]),
                    frozenset(one["relevant"]),
                )
                for one in data["questions"]
            )
        )

    @property
    def num_passages(self) -> int:
        """Number of candidates of all questions."""
        return sum(len(one.passages) for one in self._questions)

    def values(
        self,
        ranking: Ranking,
        agent: Agent,
        *,
        stop: Callable[[], bool] = lambda: False,
        on_query: Callable[[int, int], None] = lambda *_: None,
    ) -> list[float]:
        """Return nDCG@10 of each question, [0, 1], ranked for an agent as an ask without options ranks.

        Args:
            ranking: what ranks.
            agent: the agent.
            stop: called before each question; True ends early, with fewer values.
            on_query: called after each question, with the number of questions so far and of all.
        """
        fusion = ranking.fusion(agent)
        rankings: dict[str, list[str]] = {}
        judgements: dict[str, dict[str, int]] = {}
        for at, one in enumerate(self._questions):
            if stop():
                break
            scores = np.array(ranking.scores(one.query, one.passages, agent))
            if fusion.weight:
                vectors = text_vectors([f"{passage.title} {passage.text}" for passage in one.passages])
                scores = fuse(scores, np.array(one.first), fusion, vectors)
            order = np.argsort(-scores, kind="stable").tolist()
            rankings[str(at)] = [one.passages[place].id for place in order]
            judgements[str(at)] = dict.fromkeys(one.relevant, 1)
            on_query(len(rankings), len(self._questions))
        if not rankings:
            return []
        found: list[float] = ranking_metrics(rankings, judgements, k=10).ndcg.tolist()
        return found
