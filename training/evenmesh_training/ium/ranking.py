"""Rank with a model in this process, by its own scores, as the mesh does with a model that learned.

Equal scores keep the order in which the passages came; the reranker orders those by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from evenmesh_kit.compute import model_files
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader
from evenmesh_reranker.domain import Agent, Passage


class Ranker:
    """The model of a folder.

    Args:
        folder: as :func:`evenmesh_training.ium.start.save` writes it.
        placement: device and number type.
    """

    def __init__(self, folder: Path, placement: Placement) -> None:
        version = model_files.version(folder)
        self._encoder: Encoder = EncoderLoader(placement).full(
            folder, version, provenance="offline training", created_at=datetime.now(UTC)
        )

    def ranked(self, query: str, passages: Sequence[Passage], agent: Agent) -> dict[str, float]:
        """Return the score of each passage, [0, 1], by its id, the most useful first."""
        scores = self._encoder.scores(query, passages, agent)
        best = sorted(range(len(scores)), key=lambda at: -scores[at])
        return {passages[at].id: scores[at] for at in best}
