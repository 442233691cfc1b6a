"""Replay an agent's queries in a random order, and learn from what it is shown."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from benchmarks.online_study.queries import Asked
from evenmesh_reranker.backends.encoder import Encoder
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.ports import Adapter
from evenmesh_training.ium.learning import Options
from evenmesh_training.online.replay import ReplayOptions, Round, Step, known_judge, replay
from evenmesh_training.online.training_examples import Learns

SHOWN: Final = 4
BATCH: Final = 64
"""b, queries between two rounds."""
OPTIONS: Final = Options(
    epochs=2, batch_size=32, micro_batch=32, learning_rate=1e-3, max_length=256, unknown_share=0.0
)
"""Those of the trainer without settings."""
_ORDER: Final = 43


class KnownScores:
    """A model whose scores of some candidates are known as long as nothing changes its parameters.

    Args:
        model: the model.
        known: its scores by query and passage id.
    """

    def __init__(self, model: Encoder, known: Mapping[tuple[str, str], float]) -> None:
        self._model = model
        self._known = known

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def scores(
        self, query: str, passages: Sequence[Passage], agent: Agent, adapter: Adapter | None = None
    ) -> list[float]:
        """See :meth:`Encoder.scores`."""
        if adapter is None or adapter.size == 0:
            return [self._known[query, one.id] for one in passages]
        return self._model.scores(query, passages, agent, adapter)


def order(asked: Sequence[Asked], seed: int) -> list[Asked]:
    """Return queries in a random order."""
    return [asked[at] for at in np.random.default_rng((seed, _ORDER)).permutation(len(asked))]


def replayed(
    name: str,
    asked: Sequence[Asked],
    model: Encoder,
    *,
    learns: Learns | None,
    seed: int,
    always: bool = False,
    judged: int = SHOWN,
) -> Iterator[dict[str, Any]]:
    """Replay an agent's queries; yield a row for each.

    Args:
        name: of the agent.
        asked: its queries.
        model: that ships.
        learns: what is learned after every so many queries; None: nothing.
        seed: of the order of the queries, and of learning.
        always: whether each candidate serves, as in the paper.
        judged: passages that the agent reports on.
    """
    stream = order(asked, seed)
    known = {
        (one.query.text, passage.id): score
        for one in stream
        for passage, score in zip(one.query.passages, one.scores, strict=True)
    }
    queries = [one.query for one in stream]
    settings = ReplayOptions(
        None if learns is None else BATCH,
        SHOWN,
        replace(OPTIONS, seed=seed),
        learns=learns or "model",
        always=always,
        judged=judged,
    )
    base = cast(Encoder, KnownScores(model, known))

    def note(found: Round) -> None:
        sys.stderr.write(f"{name}, seed {seed}, {found}\n")

    async def steps() -> list[Step]:
        replaying = replay(queries, known_judge(queries), Agent("study", name), base, settings, on_round=note)
        return [one async for one in replaying]

    for one, step in zip(stream, asyncio.run(steps()), strict=True):
        yield {
            "agent": name,
            "seed": seed,
            "position": step.position,
            "query": one.id,
            "utility": step.utility,
            "rounds": step.rounds,
        }
