"""What each model of the study is trained on: a recipe for each variant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from evenmesh_training.rankrag.data.examples import Kind
from evenmesh_training.rankrag.recipe import Context, Evaluation, Recipe, Source, Stage

SEEDS: Final = (31, 32, 33)
BATCH: Final = 32
BEGINNING: Final = "stage-one"
"""The model that every other begins with."""
EXPERT: Final = "expert"
"""A new model that learns to rank alone, shaped as monoT5 is."""
CROSS_ENCODER: Final = "cross-encoder"
"""The encoder with one output in the place of a decoder (:mod:`benchmarks.ablation_study.cross_encoder`)."""

_FIRST: Final = 16_000
_SECOND: Final = 4_800
_READING: Final = 2_400
_SETS: Final = {"squad-open": 0.95, "nq-passages": 0.05}
"""Data sets by their share of every kind."""
_ASKED: Final = (*_SETS, "multihop-small")
"""Data sets asked that training questions are compared with; the others share none."""
_LONGEST: Final = 176
"""Tokens of a question with a passage."""


@dataclass(frozen=True)
class Variant:
    """A model of the study.

    Attributes:
        name: of the variant.
        start: variant that it begins with; None: the base encoder, with a new decoder.
        examples: of each kind; their sum is what it is trained on.
        separate: whether passages of a retrieved context are shown one by one (RAFT).
    """

    name: str
    start: str | None
    examples: Mapping[Kind, int]
    separate: bool = False

    @property
    def steps(self) -> int:
        """Return the optimiser steps, of :data:`BATCH` examples each."""
        return -(-sum(self.examples.values()) // BATCH)

    @property
    def reads(self) -> bool:
        """Return whether it learns to answer, itself or before."""
        return self.start is not None or any(kind.reads for kind in self.examples)

    def recipe(self, seed: int) -> Recipe:
        """Return its recipe for a seed."""
        steps = self.steps
        stage = Stage(
            steps=steps,
            batch_size=BATCH,
            micro_batch=16,
            learning_rate=1e-4,
            head_learning_rate=3e-4,
            weight_decay=0.01,
            warm_up=min(50, steps // 8),
            decay=steps // 3,
            ema=0.99,
            max_length=_LONGEST,
            max_target=40,
            kinds_apart=True,
            evaluate_every=1_000_000,
            evaluate_examples=8,
            checkpoint_every=100,
        )
        return Recipe(
            name=f"ablation {self.name}",
            seed=seed,
            context=Context(passages=5, depth=20, pick="sampled", separate=self.separate),
            source=tuple(
                Source(name=f"{data} {kind.value}", dataset=data, kind=kind, ratio=share * count)
                for kind, count in self.examples.items()
                for data, share in _SETS.items()
            ),
            evaluation=tuple(Evaluation(dataset=data, passages=data in _SETS) for data in _ASKED),
            stage2=stage,
        )


_RICH, _RQA, _PAIRS, _RAR = (
    Kind.CONTEXT_RICH_QA,
    Kind.RETRIEVAL_AUGMENTED_QA,
    Kind.CONTEXT_RANKING,
    Kind.RETRIEVAL_AUGMENTED_RANKING,
)


def _shared(*kinds: Kind) -> dict[Kind, int]:
    """Return the examples of the second stage, as many of each kind."""
    return dict.fromkeys(kinds, _SECOND // len(kinds))


def _with_pairs(count: int) -> Variant:
    read = dict.fromkeys((_RICH, _RQA), _READING // 2)
    return Variant(f"pairs-{count}", BEGINNING, read | ({_PAIRS: count} if count else {}))


VARIANTS: Final[Mapping[str, Variant]] = {
    one.name: one
    for one in (
        Variant(BEGINNING, None, {_RICH: _FIRST}),
        Variant("full", BEGINNING, _shared(_RICH, _RQA, _PAIRS, _RAR)),
        Variant("without-rqa", BEGINNING, _shared(_RICH, _PAIRS, _RAR)),
        Variant("without-rar", BEGINNING, _shared(_RICH, _RQA, _PAIRS)),
        Variant("without-ranking", BEGINNING, _shared(_RICH, _RQA)),
        Variant("raft", BEGINNING, _shared(_RICH, _RQA), separate=True),
        _with_pairs(0),
        _with_pairs(5_000),
        _with_pairs(10_000),
        _with_pairs(50_000),
        Variant(EXPERT, None, {_PAIRS: 50_000}),
        Variant(CROSS_ENCODER, None, {_PAIRS: 50_000}),
    )
}
"""In the order in which they are trained."""
