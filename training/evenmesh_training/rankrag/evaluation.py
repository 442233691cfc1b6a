"""Evaluate during training on small fixed samples of held-out questions."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from evenmesh_core.text_metrics import exact_match, token_f1
from evenmesh_generator.pointer.abstention import is_abstention
from evenmesh_training.rankrag.data.blend import SourceExamples, usable
from evenmesh_training.rankrag.data.datasets import MissingDataError, Request, Split, reader
from evenmesh_training.rankrag.data.examples import Example, Kind
from evenmesh_training.rankrag.data.negatives import Bm25Index
from evenmesh_training.rankrag.learners.learner import Prediction
from evenmesh_training.rankrag.recipe import Recipe, Source

_KINDS = {
    "gold": Kind.CONTEXT_RICH_QA,
    "five": Kind.RETRIEVAL_AUGMENTED_QA,
    "ranking": Kind.CONTEXT_RANKING,
}

_UNANSWERABLE = 0.3
"""Share of the questions over several passages whose gold passage is taken out."""


def samples(recipe: Recipe, root: Path, count: int) -> dict[str, list[Example]]:
    """Return ``count`` held-out examples each for ``gold``, ``five`` and ``ranking``, the same for a seed.

    From the first data set that the recipe protects and that has single-passage answers; none where it
    protects nothing that is there.
    """
    for one in recipe.evaluation:
        try:
            dataset = reader(one.dataset).read(
                Request(root, Split.HELD_OUT, Kind.CONTEXT_RICH_QA, recipe.context)
            )
        except MissingDataError:
            continue
        items = [item for item in dataset.items if usable(item, Kind.CONTEXT_RICH_QA)]
        if not items:
            continue
        order = np.random.default_rng(recipe.seed).permutation(len(items))[:count]
        items = [items[int(at)] for at in order]
        search = Bm25Index(f"{p.title} {p.text}" for p in dataset.passages)
        found = {}
        for name, kind in _KINDS.items():
            share = _UNANSWERABLE if name == "five" else 0.0
            context = recipe.context.model_copy(update={"unanswerable": share, "cut_sentences": 0.0})
            source = Source(name=name, dataset=one.dataset, kind=kind, ratio=1.0)
            material = SourceExamples(source, dataset, items, context, recipe.seed, search)
            found[name] = [
                material.make(item, np.random.default_rng([recipe.seed, number]))
                for number, item in enumerate(items)
            ]
        return found
    return {}


def measures(
    examples: Mapping[str, Sequence[Example]], judged: Mapping[str, Sequence[Prediction]]
) -> dict[str, float]:
    """Return means in [0, 1] by name; ``nan`` where nothing was there to count.

    ``gold_em``, ``gold_f1`` from the gold passage; ``five_em``, ``five_f1`` from several with it among
    them; ``abstention_precision``, ``abstention_recall`` over several with and without it;
    ``ranking_accuracy`` at 0.5 and ``ranking_auc``.
    """
    found: dict[str, float] = {}
    for name in ("gold", "five"):
        said = [
            (example, one.text)
            for example, one in zip(examples.get(name, ()), judged.get(name, ()), strict=True)
            if one.text is not None and example.answerable
        ]
        found[f"{name}_em"] = _mean([exact_match(text, list(example.answers)) for example, text in said])
        found[f"{name}_f1"] = _mean([token_f1(text, list(example.answers)) for example, text in said])
    answered = [
        (example.answerable, is_abstention(one.text or ""))
        for example, one in zip(examples.get("five", ()), judged.get("five", ()), strict=True)
    ]
    found["abstention_precision"] = _mean([not able for able, abstained in answered if abstained])
    found["abstention_recall"] = _mean([abstained for able, abstained in answered if not able])
    ranked = [
        (example.shown[0].gold, one.probability)
        for example, one in zip(examples.get("ranking", ()), judged.get("ranking", ()), strict=True)
        if one.probability is not None
    ]
    found["ranking_accuracy"] = _mean([(probability > 0.5) == gold for gold, probability in ranked])
    found["ranking_auc"] = auc([gold for gold, _ in ranked], [value for _, value in ranked])
    return found


def auc(positive: Sequence[bool], scores: Sequence[float]) -> float:
    """Return P(a positive scores above a negative), ties counting half; ``nan`` without one of each."""
    mask = np.asarray(positive, dtype=bool)
    above, below = int(mask.sum()), int((~mask).sum())
    if not above or not below:
        return float("nan")
    ranks = rankdata(np.asarray(scores, dtype=np.float64))
    return float((ranks[mask].sum() - above * (above + 1) / 2) / (above * below))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
