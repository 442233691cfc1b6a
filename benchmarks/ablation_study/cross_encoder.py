"""The cross-encoder of the study: the same encoder with one output, trained on the expert's pairs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.ablation_study.asking import LONGEST, Answering, Found, Judging
from benchmarks.ablation_study.sets import Question
from benchmarks.ablation_study.variants import BATCH, Variant
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.backends.encoder import EncoderLoader
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_training.ium import start
from evenmesh_training.ium.learning import Example, Options, learn
from evenmesh_training.rankrag.data.blend import Blend
from evenmesh_training.rankrag.data.datasets import default_data

_AGENT = Agent()


def train(variant: Variant, seed: int, folder: Path) -> None:
    """Train on a variant's examples, which are pairs; the folder appears complete.

    What was begun before goes on.
    """
    blend = Blend(variant.recipe(seed), default_data())
    made = [blend[number] for number in range(sum(variant.examples.values()))]
    pairs = [
        Example(one.question, shown.passage.title, shown.passage.text, _AGENT, float(shown.gold))
        for one in made
        for shown in one.shown
    ]
    tokenizer, model = start.fresh(seed=seed)
    options = Options(
        epochs=1,
        batch_size=BATCH,
        micro_batch=BATCH,
        learning_rate=1e-4,
        warm_up=0.03,
        decay=1 / 3,
        max_length=LONGEST,
        unknown_share=0.0,
        seed=seed,
        bf16=True,
        checkpoint_every=100,
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    learn(tokenizer, model, pairs, options, checkpoint=folder.parent / "learning.pt")
    start.save(tokenizer, model, folder)


def judging(folder: Path) -> Judging:
    """Return a trained one."""
    loader = EncoderLoader(Placement.choose("cpu", "auto"), max_length=LONGEST)
    model = loader.full(folder, "study", provenance="study", created_at=datetime.now(UTC))

    def judge(questions: Sequence[Question], found: Found) -> tuple[list[list[float]], Answering | None]:
        return [
            model.scores(one.text, [Passage(p.id, p.title, p.text) for p in some], _AGENT)
            for one, some in zip(questions, found, strict=True)
        ], None

    return judge
