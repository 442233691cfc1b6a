"""What an agent gets next: where it starts from, how it ranks, and how it becomes a version."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from evenmesh_reranker.backends.adapters import LowRankAdapter
from evenmesh_reranker.backends.encoder import Encoder
from evenmesh_reranker.domain import Agent, Fusion, Passage
from evenmesh_reranker.models import tokens
from evenmesh_reranker.models.fusions import FIELD
from evenmesh_reranker.models.manifest import FILE as MANIFEST
from evenmesh_reranker.models.manifest import Kind
from evenmesh_reranker.ports import Assigned
from evenmesh_training.ium.fusing import Scored
from evenmesh_training.ium.result_cache import Candidates
from evenmesh_training.online import low_rank
from evenmesh_training.online.reported import ReportedQuery
from evenmesh_training.online.training_examples import TrainingExample


@dataclass(frozen=True)
class Parameters:
    """What ranks for an agent: a model in memory, and the agent's adapter if it has one."""

    model: Encoder
    adapter: LowRankAdapter | None = None

    def fusion(self, agent: Agent) -> Fusion:
        """Return how the agent's scores are fused with those of a first stage, as serving does."""
        return Assigned(self.model, self.adapter).fusion(agent)

    def scores(self, query: str, passages: Sequence[Passage], agent: Agent) -> list[float]:
        """Return the score of each passage, [0, 1], as serving computes it."""
        return self.model.scores(query, passages, agent, self.adapter)

    def reported(self, example: TrainingExample, agent: Agent) -> ReportedQuery:
        """Return an example's candidates with their scores."""
        found = example.found or Candidates(example.passages, (0.0,) * len(example.passages))
        scores = self.scores(example.query, found.passages, agent)
        scored = Scored.of(found, dict(zip((one.id for one in found.passages), scores, strict=True)))
        judged = zip(example.passages, example.usefulness, strict=True)
        utilities = {one.id: useful for one, useful in judged}
        unknown = np.full(len(scored.ids), np.nan)
        return ReportedQuery(agent, scored, utilities, fused=example.found is not None, gains=unknown)

    def all_reported(
        self,
        examples: Sequence[TrainingExample],
        agent: Agent,
        *,
        stop: Callable[[], bool],
        on_query: Callable[[int, int], None],
    ) -> list[ReportedQuery]:
        """Return :meth:`reported` of each example.

        Args:
            examples: queries, and what was judged.
            agent: the agent.
            stop: called before each query; True ends early, with fewer.
            on_query: called after each query, with the number of queries so far and of all.
        """
        found: list[ReportedQuery] = []
        for one in examples:
            if stop():
                break
            found.append(self.reported(one, agent))
            on_query(len(found), len(examples))
        return found


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
        if served is None or not served.pairs:
            adapter = low_rank.fresh(base.encoder.model, layers=layers, rank=rank, seed=seed)
            if served is not None:
                adapter = replace(adapter, fusion=served.fusion)
        else:
            adapter = low_rank.copy(served)
        return cls(Kind.ADAPTER, base.version, Parameters(base, adapter))

    @classmethod
    def alike(cls, base: Encoder, served: LowRankAdapter | None) -> Candidate:
        """Return an adapter that ranks as the served one, or as the model of all agents without one."""
        adapter = LowRankAdapter("", {}) if served is None else low_rank.copy(served)
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
        made = cls(Kind.FULL, "", Parameters(copy))
        return made if served is None or served.fusion is None else made.fused(agent, served.fusion)

    def fused(self, agent: Agent, fusion: Fusion) -> Candidate:
        """Return it with another fusion of the agent; a whole model is changed in place."""
        model, adapter = self.parameters.model, self.parameters.adapter
        if adapter is not None:
            return replace(self, parameters=Parameters(model, replace(adapter, fusion=fusion)))
        model.fusions = model.fusions.but(agent, fusion)
        setattr(cast(Any, model.encoder.model).config, FIELD, model.fusions.dumped())
        return self

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
