"""The blend: an endless, seeded sequence of examples in a recipe's shares, each made when it is asked for.

Examples are counted in blocks of :data:`BLOCK`. A block holds every source's share of it, apportioned by
largest remainder, in an order drawn from the seed; so any example can be made without those before it, and
a resumed run sees exactly what an uninterrupted run sees.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from evenmesh_core.text_metrics import contains_answer
from evenmesh_generator.domain import Passage
from evenmesh_generator.pointer.abstention import ABSTENTION
from evenmesh_training.rankrag.batches import EpochOrder
from evenmesh_training.rankrag.data.chunks import without_answer
from evenmesh_training.rankrag.data.datasets import (
    READERS,
    Dataset,
    Item,
    MissingDataError,
    Request,
    Split,
    reader,
)
from evenmesh_training.rankrag.data.examples import Example, Form, Kind, Shown
from evenmesh_training.rankrag.data.leakage import Guard, Removed, asked
from evenmesh_training.rankrag.data.negatives import Bm25Index
from evenmesh_training.rankrag.recipe import Context, Recipe, RecipeError, Source

BLOCK: Final = 1000
"""Examples in which the shares are kept exactly."""


@dataclass(frozen=True)
class BlendRow:
    """One source's line of the summary.

    ``wanted`` and ``share`` are fractions of the blend: the recipe's, normalised (0 for a stand-in), and what
    it is after the shares of missing sources went to the others. ``missing`` says why a
    source has no examples, else None.
    """

    source: Source
    licence: str
    split: str
    items: int
    wanted: float
    share: float
    leaked: Removed
    unusable: int
    missing: str | None = None


@dataclass(eq=False)
class SourceExamples:
    """One source's items and passages, and how its examples are made."""

    source: Source
    dataset: Dataset
    items: Sequence[Item]
    context: Context
    seed: int
    search: Bm25Index

    def __post_init__(self) -> None:
        self._order = EpochOrder(len(self.items), self.seed)

    def __len__(self) -> int:
        return len(self.items)

    def example(self, ordinal: int) -> Example:
        """Return the source's example number ``ordinal``: every item once per epoch, each epoch in another
        order.
        """
        item = self.items[self._order[ordinal]]
        return self.make(item, np.random.default_rng([self.seed, ordinal, 1]))

    def make(self, item: Item, rng: np.random.Generator) -> Example:
        """Return the example of ``item``; all choices from ``rng``."""
        kind = self.source.kind
        shown: list[Shown] = []
        match kind:
            case Kind.SFT:
                pass
            case Kind.CONTEXT_RICH_QA:
                shown = [self._shown(item, int(rng.choice(item.gold)))]
                if rng.random() < self.context.unanswerable:
                    shown = self._cut(item, shown[0]) or shown
            case Kind.CONTEXT_RANKING:
                shown = self._judged(item, rng)
            case Kind.RETRIEVAL_AUGMENTED_QA:
                shown = self._context_of(item, rng, taken_out=rng.random() < self.context.unanswerable)
                if self.context.separate:
                    shown = shown[:1]  # they are shuffled
            case Kind.RETRIEVAL_AUGMENTED_RANKING:
                shown = self._context_of(item, rng, taken_out=False)
        separate = kind is Kind.RETRIEVAL_AUGMENTED_QA and self.context.separate
        answered = kind is Kind.SFT or separate or any(one.gold or one.holds for one in shown)
        return Example(
            kind,
            self.source.name,
            item.id,
            item.question,
            item.turns,
            tuple(shown),
            item.answers[0] if answered else ABSTENTION,
            item.answers,
            self.source.form or item.form,
        )

    def _shown(self, item: Item, place: int) -> Shown:
        passage = self.dataset.passages[place]
        gold = place in item.gold
        return Shown(passage, gold, gold or self._holds(item, passage))

    def _holds(self, item: Item, passage: Passage) -> bool:
        # a verdict on a claim is no text to look for, nor are labelled chunks judged by it
        if item.form is Form.CLAIM or item.irrelevant:
            return False
        return any(contains_answer(passage.text, answer) for answer in item.answers)

    def _cut(self, item: Item, gold: Shown) -> list[Shown]:
        """Return the gold passage without its sentences that hold the answer; none where that cannot be
        done.
        """
        if item.form is Form.CLAIM:
            return []
        rest = without_answer(gold.passage.text, item.answers)
        if rest is None:
            return []
        return [Shown(dataclasses.replace(gold.passage, text=rest), gold=False, holds=False, altered=True)]

    def _judged(self, item: Item, rng: np.random.Generator) -> list[Shown]:
        """Return one passage to judge: gold or, half the time, a hard negative."""
        if rng.random() < 0.5:
            negatives = [one for one in self._negatives(item, rng, self.context.passages) if one.irrelevant]
            if negatives:
                return negatives[:1]
        return [self._shown(item, int(rng.choice(item.gold)))]

    def _context_of(self, item: Item, rng: np.random.Generator, *, taken_out: bool) -> list[Shown]:
        """Return the gold passages among hard negatives, shuffled; ``taken_out``: none answers."""
        count = self.context.passages
        kept: list[Shown] = []
        if taken_out:
            if rng.random() < self.context.cut_sentences:
                kept = self._cut(item, self._shown(item, int(rng.choice(item.gold))))
        else:
            kept = [self._shown(item, place) for place in item.gold[:count]]
        others = self._negatives(item, rng, count + len(item.gold))
        if taken_out:
            others = [one for one in others if one.irrelevant]
        shown = [*kept, *others][:count]
        if not shown:  # BM25 finds nothing else: the gold passage is all there is to show
            shown = [self._shown(item, place) for place in item.gold[:count]]
        return [shown[int(place)] for place in rng.permutation(len(shown))]

    def _negatives(self, item: Item, rng: np.random.Generator, count: int) -> list[Shown]:
        """Return up to ``count`` passages that are not gold: known negatives, else BM25's."""
        known = [place for place in item.irrelevant if self.dataset.passages[place].text]
        if known:
            return [self._shown(item, known[int(at)]) for at in rng.permutation(len(known))[:count]]
        found = [
            place
            for place in self.search.best(item.question, self.context.depth + len(item.gold))
            if place not in item.gold and self.dataset.passages[place].text
        ]
        if self.context.pick == "sampled" and len(found) > count:
            weight = 1.0 / np.arange(1, len(found) + 1)
            drawn = rng.choice(len(found), size=count, replace=False, p=weight / weight.sum())
            found = [found[int(at)] for at in drawn]
        return [self._shown(item, place) for place in found[:count]]


class Blend:
    """The examples of a recipe's stage over local files.

    Args:
        recipe: what goes in.
        root: folder of the data sets.
        stage: 1 uses the SFT sources alone, 2 all of them.

    Raises:
        RecipeError: nothing is left of the recipe, or a reader is unknown.
    """

    def __init__(self, recipe: Recipe, root: Path, *, stage: int = 2) -> None:
        if not root.is_dir():
            raise RecipeError(f"no data folder {root}: name it by --data or EVENMESH_SHARED_DATA")
        self.recipe = recipe
        self.guard = Guard()
        self.unprotected: list[str] = []
        """Evaluation sets that are not there, so that nothing could be compared with them."""
        for one in recipe.evaluation:
            request = Request(root, Split.HELD_OUT, Kind.CONTEXT_RICH_QA, recipe.context)
            try:
                self.guard.protect(reader(one.dataset).read(request), passages=one.passages)
            except MissingDataError as error:
                self.unprotected.append(f"{one.dataset} (no {error})")
        sources = [s for s in recipe.source if stage == 2 or s.kind is Kind.SFT]
        if not sources:
            raise RecipeError(
                f"recipe {recipe.name!r} has no source of kind sft, which is all that stage 1 uses"
            )
        self._material: dict[str, SourceExamples] = {}
        self.rows = self._gather(sources, root)
        present = [row for row in self.rows if row.missing is None]
        if not present:
            reasons = "; ".join(f"{row.source.name}: {row.missing}" for row in self.rows)
            raise RecipeError(f"the blend is empty under {root}: {reasons}")
        self._names = [row.source.name for row in present]
        self._quota = apportion([row.share for row in present], BLOCK)
        self._block: tuple[int, list[tuple[int, int]]] | None = None

    def __getitem__(self, index: int) -> Example:
        """Return example number ``index``, from 0; there is no last one."""
        block, at = divmod(index, BLOCK)
        if self._block is None or self._block[0] != block:
            rng = np.random.default_rng([self.recipe.seed, block, 2])
            order = rng.permutation(np.repeat(np.arange(len(self._quota)), self._quota))
            so_far = [0] * len(self._quota)
            slots = []
            for source in order.tolist():
                slots.append((source, so_far[source]))
                so_far[source] += 1
            self._block = (block, slots)
        source, rank = self._block[1][at]
        return self._material[self._names[source]].example(block * self._quota[source] + rank)

    def __iter__(self) -> Iterator[Example]:
        index = 0
        while True:
            yield self[index]
            index += 1

    def texts(self) -> tuple[list[str], list[str]]:
        """Return every question of the blend, and every passage that it may show.

        Runs end before all of them were learned from; a question that is not among these surely was not.
        """
        material = self._material.values()
        shown = {id(one.dataset): one.dataset for one in material if one.source.kind is not Kind.SFT}
        return (
            list(dict.fromkeys(asked(item) for one in material for item in one.items)),
            [passage.text for dataset in shown.values() for passage in dataset.passages],
        )

    def _gather(self, sources: Sequence[Source], root: Path) -> list[BlendRow]:
        cleaned: dict[tuple[str, str | None, Kind | None], tuple[Dataset, Removed]] = {}
        searches: dict[int, Bm25Index] = {}
        facts: list[tuple[Source, Dataset | None, Removed, int, int, str | None]] = []
        for order, source in enumerate(sources):
            found = reader(source.dataset)
            if found.licence not in self.recipe.licences:
                facts.append(
                    (source, None, Removed(), 0, 0, f"licence {found.licence} is not for this recipe")
                )
                continue
            key = (source.dataset, source.path, source.kind if found.by_kind else None)
            try:
                if key not in cleaned:
                    request = Request(root, Split.TRAIN, source.kind, self.recipe.context, source.path)
                    cleaned[key] = self.guard.cleaned(found.read(request))
            except MissingDataError as error:
                facts.append((source, None, Removed(), 0, 0, f"no {error}"))
                continue
            dataset, leaked = cleaned[key]
            items = [item for item in dataset.items if usable(item, source.kind)]
            unusable = len(dataset.items) - len(items)
            if not items:
                why = "no usable question is left" if dataset.items else "no question in it"
                facts.append((source, dataset, leaked, 0, unusable, why))
                continue
            if id(dataset) not in searches:
                # what has labels of its own, or shows no passages, needs no search
                needed = source.kind is not Kind.SFT and any(not item.irrelevant for item in items)
                searches[id(dataset)] = Bm25Index(
                    f"{p.title} {p.text}" for p in (dataset.passages if needed else ())
                )
            self._material[source.name] = SourceExamples(
                source,
                dataset,
                items,
                self.recipe.context,
                int(np.random.SeedSequence([self.recipe.seed, order]).generate_state(1)[0]),
                searches[id(dataset)],
            )
            facts.append((source, dataset, leaked, len(items), unusable, None))
        present = {fact[0].name for fact in facts if fact[5] is None}
        wanted, notes = effective(sources, present)
        total = sum(source.ratio for source in sources if source.instead_of is None)
        shares = redistributed(
            [
                (source.kind, ratio, source.name in present and ratio > 0)
                for source, ratio in zip(sources, wanted, strict=True)
            ]
        )
        return [
            BlendRow(
                source,
                READERS[source.dataset].licence,
                dataset.split if dataset else "–",
                items,
                0.0 if source.instead_of else source.ratio / total,
                share,
                leaked,
                unusable,
                missing or note,
            )
            for (source, dataset, leaked, items, unusable, missing), share, note in zip(
                facts, shares, notes, strict=True
            )
        ]


def usable(item: Item, kind: Kind) -> bool:
    """Return whether an example of ``kind`` can be made of ``item``: it has passages, and answers to look
    for.
    """
    if kind is Kind.SFT:
        return bool(item.answers[0].strip())
    # an answer of signs alone ("$") cannot be searched for, so no passage surely lacks it
    return bool(item.gold) and all(any(sign.isalnum() for sign in answer) for answer in item.answers)


def effective(sources: Sequence[Source], present: Set[str]) -> tuple[list[float], list[str | None]]:
    """Return the ratios once stand-ins have taken their places, and why a source is not to be used after all.

    A missing source whose stand-ins are there counts no more; one that is there leaves its stand-ins out.
    """
    together: dict[str, float] = {}
    for source in sources:
        if source.instead_of is not None and source.name in present:
            together[source.instead_of] = together.get(source.instead_of, 0.0) + source.ratio
    ratio_of = {source.name: source.ratio for source in sources}
    ratios: list[float] = []
    notes: list[str | None] = []
    for source in sources:
        first = source.instead_of
        note = None
        if first is None:
            ratio = 0.0 if source.name in together and source.name not in present else source.ratio
        elif first in present:
            ratio, note = 0.0, f"{first} is there"
        elif source.name in present:
            ratio = ratio_of[first] * source.ratio / together[first]
        else:
            ratio = 0.0
        ratios.append(ratio)
        notes.append(note)
    return ratios, notes


def redistributed(sources: Sequence[tuple[Kind, float, bool]]) -> list[float]:
    """Return shares, summing to 1, of sources given as (kind, ratio, whether it is there).

    The share of what is missing goes to the sources of its kind in proportion to their ratios; that of a
    kind of which nothing is there, to all that is. Nothing there: all zero.
    """
    total = sum(ratio for _, ratio, _ in sources)
    by_kind: dict[Kind, float] = {}
    there: dict[Kind, float] = {}
    for kind, ratio, present in sources:
        by_kind[kind] = by_kind.get(kind, 0.0) + ratio / total
        there[kind] = there.get(kind, 0.0) + (ratio if present else 0.0)
    kept = sum(by_kind[kind] for kind, ratio in there.items() if ratio > 0)
    return [
        by_kind[kind] / kept * ratio / there[kind] if present else 0.0 for kind, ratio, present in sources
    ]


def apportion(shares: Sequence[float], seats: int) -> list[int]:
    """Split ``seats`` by ``shares`` (summing to 1) by largest remainder; ties go to the earlier one."""
    exact = [share * seats for share in shares]
    given = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda at: (given[at] - exact[at], at))
    for at in by_remainder[: seats - sum(given)]:
        given[at] += 1
    return given


def summary(blend: Blend) -> Mapping[str, Sequence[str]]:
    """Return notes on the blend by heading: what is missing, and what the leakage check removed."""
    missing = [
        f"{row.source.name} ({row.missing})"
        for row in blend.rows
        if row.missing is not None and row.source.instead_of is None
    ]
    stand_ins = [
        f"{row.source.name} for {row.source.instead_of}"
        for row in blend.rows
        if row.missing is None and row.source.instead_of
    ]
    return {
        "missing (their shares go to stand-ins, else to the kind, else to all)": missing,
        "stand-ins": stand_ins,
        "compared with": blend.guard.names,
        "could not be compared with": blend.unprotected,
        "passages removed for overlap": sorted(
            {f"{row.source.dataset} {row.leaked.passages:,}" for row in blend.rows if row.leaked.passages}
        ),
    }


def described(blend: Blend) -> dict[str, object]:
    """Return what goes into a blend, for JSON: the shares of all sources, what leaked, and the notes."""
    return {
        "recipe": blend.recipe.name,
        "sources": [
            {
                "source": row.source.name,
                "dataset": row.source.dataset,
                "kind": str(row.source.kind),
                "split": row.split,
                "licence": row.licence,
                "questions": row.items,
                "wanted": row.wanted,
                "share": row.share,
                "leaked_questions": row.leaked.questions,
                "leaked_gold": row.leaked.orphans,
                "leaked_passages": row.leaked.passages,
                "unusable": row.unusable,
                "missing": row.missing,
            }
            for row in blend.rows
        ],
        "notes": {heading: list(lines) for heading, lines in summary(blend).items()},
    }
