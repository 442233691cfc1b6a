"""An agent's next parameters: where they start from, how they score, and how they become a version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evenmesh_reranker.backends.adapters import LowRankAdapter
from evenmesh_reranker.backends.encoder import Encoder
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.models import tokens
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_reranker.models.manifest import FILE as MANIFEST
from evenmesh_reranker.models.manifest import Kind
from evenmesh_training.online import low_rank
from evenmesh_training.online.comparison import order_value
from evenmesh_training.online.training_examples import TrainingExample


@dataclass(frozen=True)
class Parameters:
    """What scores for an agent: a model in memory, and the agent's adapter if it has one."""

    model: Encoder
    adapter: LowRankAdapter | None = None

    @property
    def fusions(self) -> Fusions:
        """How the scores are fused with those of a first stage."""
        return self.model.fusions

    def scores(self, query: str, passages: Sequence[Passage], agent: Agent) -> list[float]:
        """Return the score of each passage, [0, 1], as serving computes it."""
        return self.model.scores(query, passages, agent, self.adapter)

    def values(self, examples: Sequence[TrainingExample], agent: Agent) -> list[float]:
        """Return :func:`~evenmesh_training.online.comparison.order_value` of each example."""
        return [order_value(self.scores(one.query, one.passages, agent), one.usefulness) for one in examples]


@dataclass(frozen=True)
class Candidate:
    """Parameters that are trained for an agent.

    Attributes:
        kind: what its version consists of.
        base: of an adapter, the version it changes; empty otherwise.
        parameters: the parameters; training in :meth:`training` changes them.
    """

    kind: Kind
    base: str
    parameters: Parameters

    @classmethod
    def adapted(
        cls, base: Encoder, served: LowRankAdapter | None, *, layers: str, rank: int, seed: int
    ) -> Candidate:
        """Return an adapter of the model of all agents that starts from the agent's served one.

        Raises:
            ValueError: the model has no such layers.
        """
        if served is None:
            adapter = low_rank.fresh(base.encoder.model, layers=layers, rank=rank, seed=seed)
        else:
            adapter = low_rank.copy(served)
        return cls(Kind.ADAPTER, base.version, Parameters(base, adapter))

    @classmethod
    def full(cls, copy: Encoder, served: LowRankAdapter | None, agent: Agent) -> Candidate:
        """Return a model of the agent's own, with tokens for it if the model has agent tokens.

        Args:
            copy: a copy of the model that serves the agent; training changes it.
            served: the adapter that serves the agent; it becomes part of the model.
            agent: the agent.
        """
        if served is not None:
            low_rank.fold(copy.encoder.model, served)
        copy.add_agents([agent])
        return cls(Kind.FULL, "", Parameters(copy))

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self.parameters.model.encoder.tokenizer

    @contextmanager
    def training(self) -> Iterator[Any]:
        """Yield the transformers model; the parameters that require gradients are the ones to train."""
        model: Any = self.parameters.model.encoder.model
        if self.parameters.adapter is None:
            yield model
        else:
            with low_rank.trainable(model, self.parameters.adapter):
                yield model

    def save(self, source: Path, folder: Path) -> tuple[str, ...]:
        """Write its files into a folder, and return its agent tokens.

        Args:
            source: folder of the model it started from, for its files beside weights and tokenizer.
            folder: target.
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
