"""Check leakage: no training text may share 13 consecutive words with evaluation text."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from evenmesh_training.rankrag.data.datasets import Dataset, Item
from evenmesh_training.rankrag.data.negatives import words

WORDS: Final = 13
"""Length of the overlap that counts, in words."""


def grams(text: str) -> Iterator[str]:
    """Yield runs of :data:`WORDS` lower-case words of ``text``; a shorter text is one run."""
    found = words(text)
    if 0 < len(found) < WORDS:
        yield " ".join(found)
    for begin in range(len(found) - WORDS + 1):
        yield " ".join(found[begin : begin + WORDS])


@dataclass
class Removed:
    """What was removed: ``questions`` that overlap, ``orphans`` whose gold passages do, ``passages``."""

    questions: int = 0
    orphans: int = 0
    passages: int = 0


@dataclass
class Guard:
    """Text that must not be trained on; a question shorter than a run is compared whole."""

    questions: set[str] = field(default_factory=set)
    passages: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)

    def protect(self, dataset: Dataset, *, passages: bool) -> None:
        """Add the questions of ``dataset``, and with ``passages`` the passages its items show."""
        self.names.append(dataset.name)
        for item in dataset.items:
            self.questions.update(grams(asked(item)))
        if passages:
            shown = {place for item in dataset.items for place in (*item.gold, *item.irrelevant)}
            for place in shown:
                text = dataset.passages[place].text
                self.passages.update(gram for gram in grams(text) if gram.count(" ") == WORDS - 1)

    def cleaned(self, dataset: Dataset) -> tuple[Dataset, Removed]:
        """Return ``dataset`` without what overlaps; passages keep their places, items lose those removed."""
        found = Removed()
        bad = {
            place
            for place, passage in enumerate(dataset.passages)
            if self.passages and _touches(grams(passage.text), self.passages)
        }
        found.passages = len(bad)
        items: list[Item] = []
        for item in dataset.items:
            if _touches(grams(asked(item)), self.questions):
                found.questions += 1
                continue
            gold = tuple(place for place in item.gold if place not in bad)
            # a question of several steps is no longer answered when one of its passages is gone
            if len(gold) < len(item.gold):
                found.orphans += 1
                continue
            irrelevant = tuple(place for place in item.irrelevant if place not in bad)
            items.append(replace(item, gold=gold, irrelevant=irrelevant))
        blank = [
            replace(passage, title="", text="") if place in bad else passage
            for place, passage in enumerate(dataset.passages)
        ]
        return replace(dataset, passages=blank, items=items), found


def asked(item: Item) -> str:
    """Return the question with what was asked before it: "when was it released?" alone is in every
    conversation.
    """
    return " ".join((*(turn.question for turn in item.turns), item.question))


def _touches(runs: Iterable[str], known: set[str]) -> bool:
    return any(run in known for run in runs)
