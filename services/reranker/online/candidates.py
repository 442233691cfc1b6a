"""An agent's next parameters: what they begin as, how they score, and how they become a version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from meshkit.lengths import by_length
from services.reranker.backends.adapters import LowRankAdapter
from services.reranker.backends.encoder import Encoder
from services.reranker.domain import Agent, Passage
from services.reranker.models import tokens
from services.reranker.models.manifest import FILE as MANIFEST
from services.reranker.models.manifest import Kind
from services.reranker.models.pairs import passage_text
from services.reranker.online import low_rank
from services.reranker.online.comparison import order_value
from services.reranker.online.lessons import Lesson

_BATCH_ROWS: Final = 32
_BATCH_TOKENS: Final = 4096


@dataclass(frozen=True)
class Parameters:
    """What scores for an agent: a model in memory and perhaps changes to it.

    Attributes:
        model: the model.
        adapter: the agent's changes to it.
    """

    model: Encoder
    adapter: LowRankAdapter | None = None

    def scores(self, query: str, passages: Sequence[Passage], agent: Agent) -> list[float]:
        """The score of each passage, [0, 1], as serving computes it."""
        texts = [passage_text(one.title, one.text) for one in passages]
        rows = self.model.rows(query, texts, agent)
        found = [0.0] * len(rows)
        for batch in by_length([len(row.ids) for row in rows], _BATCH_TOKENS, size=_BATCH_ROWS):
            values = self.model.probabilities([rows[at] for at in batch], [self.adapter] * len(batch))
            for at, value in zip(batch, values, strict=True):
                found[at] = value
        return found

    def values(self, lessons: Sequence[Lesson], agent: Agent) -> list[float]:
        """How well it orders each lesson, see :func:`~services.reranker.online.comparison.order_value`."""
        return [order_value(self.scores(one.query, one.passages, agent), one.usefulness) for one in lessons]


@dataclass(frozen=True)
class Candidate:
    """Parameters that are trained for an agent.

    Attributes:
        kind: what its version consists of.
        base: of changes, the version they change; empty otherwise.
        parameters: what they are; :meth:`training` changes them.
    """

    kind: Kind
    base: str
    parameters: Parameters

    @classmethod
    def changes(
        cls, base: Encoder, served: LowRankAdapter | None, *, layers: str, rank: int, seed: int
    ) -> Candidate:
        """Changes to the model that serves all, going on from those that serve the agent.

        Raises:
            ValueError: the model has no such layers.
        """
        begin = (
            low_rank.copied(served)
            if served is not None
            else low_rank.fresh(base.encoder.model, layers=layers, rank=rank, seed=seed)
        )
        return cls(Kind.ADAPTER, base.version, Parameters(base, begin))

    @classmethod
    def whole(cls, copy: Encoder, served: LowRankAdapter | None, agent: Agent) -> Candidate:
        """A model of the agent's own, with tokens for it if the model is told of agents.

        Args:
            copy: a copy of what serves the agent; changed by training.
            served: changes to it that serve the agent; made part of it.
            agent: whose.
        """
        if served is not None:
            low_rank.folded(copy.encoder.model, served)
        copy.add_agents([agent])
        return cls(Kind.FULL, "", Parameters(copy))

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self.parameters.model.encoder.tokenizer

    @contextmanager
    def training(self) -> Iterator[Any]:
        """The transformers model, whose parameters that require gradients are the ones to train."""
        model: Any = self.parameters.model.encoder.model
        if self.parameters.adapter is None:
            yield model
        else:
            with low_rank.trainable(model, self.parameters.adapter):
                yield model

    def save(self, source: Path, folder: Path) -> tuple[str, ...]:
        """Writes its files into a folder; the tokens of agents that it has.

        Args:
            source: the folder that the model came from, for what belongs to it beside weights and tokenizer.
            folder: where to.
        """
        if self.parameters.adapter is not None:
            self.parameters.adapter.save(folder)
            return ()
        for path in source.iterdir():
            if path.is_file() and path.suffix != ".safetensors" and path.name != MANIFEST:
                shutil.copyfile(path, folder / path.name)
        cast(Any, self.parameters.model.encoder.model).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return tokens.present(self.tokenizer)
