"""Ranking with a model in this process, by the scores that the reranker would give.

Equal scores stay in the order the passages came in; the reranker orders those by id.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from meshkit import models
from meshkit.lengths import by_length
from meshkit.placement import Placement
from services.reranker.backends.encoder import Encoder, EncoderLoader
from services.reranker.domain import Agent, Passage
from services.reranker.models.pairs import passage_text

_BATCH_TOKENS: Final = 4096


class Ranker:
    """A model of a folder.

    Args:
        folder: as :func:`services.reranker.training.start.save` writes it.
        placement: where it computes.
    """

    def __init__(self, folder: Path, placement: Placement) -> None:
        self.version = self.version_of(folder)
        self._encoder: Encoder = EncoderLoader(placement).full(
            folder, self.version, provenance="offline training", created_at=datetime.now(UTC)
        )

    @staticmethod
    def version_of(folder: Path) -> str:
        """The version of a folder's model: a hash of its files."""
        return models.version(folder)

    def ranked(self, query: str, passages: Sequence[Passage], agent: Agent) -> list[str]:
        """Ids of the passages, the most useful first; equal ones stay in their order."""
        rows = self._encoder.rows(query, [passage_text(one.title, one.text) for one in passages], agent)
        scores = [0.0] * len(rows)
        for batch in by_length([len(row.ids) for row in rows], _BATCH_TOKENS):
            found = self._encoder.probabilities([rows[at] for at in batch], [None] * len(batch))
            for at, score in zip(batch, found, strict=True):
                scores[at] = score
        return [passages[at].id for at in sorted(range(len(scores)), key=lambda at: -scores[at])]
