"""The leakage check: nothing that is trained on shares 13 words in a row with what is evaluated on."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from services.generator.training.datasets import Dataset, Item

WORDS: Final = 13
"""Length of the overlap that counts, in words."""

_WORD = re.compile(r"[a-z0-9]+")


def grams(text: str) -> Iterator[str]:
    """Runs of :data:`WORDS` words of ``text``, lower case without punctuation; a shorter text is one run."""
    words = _WORD.findall(text.lower())
    if 0 < len(words) < WORDS:
        yield " ".join(words)
    for begin in range(len(words) - WORDS + 1):
        yield " ".join(words[begin : begin + WORDS])


@dataclass
class Found:
    """What was removed: ``questions`` that overlap, ``orphans`` whose gold passages do, ``passages``."""

    questions: int = 0
    orphans: int = 0
    passages: int = 0


@dataclass
class Guard:
    """What must not be trained on; a question as short as to have no run is compared whole."""

    questions: set[str] = field(default_factory=set)
    passages: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)

    def protect(self, dataset: Dataset, *, passages: bool) -> None:
        """Adds the questions of ``dataset``, and with ``passages`` those that its items are shown."""
        self.names.append(dataset.name)
        for item in dataset.items:
            self.questions.update(grams(_asked(item)))
        if passages:
            shown = {place for item in dataset.items for place in (*item.gold, *item.irrelevant)}
            for place in shown:
                text = dataset.passages[place].text
                self.passages.update(gram for gram in grams(text) if gram.count(" ") == WORDS - 1)

    def cleaned(self, dataset: Dataset) -> tuple[Dataset, Found]:
        """``dataset`` without what overlaps; passages keep their places, items lose those removed."""
        found = Found()
        bad = {
            place
            for place, passage in enumerate(dataset.passages)
            if self.passages and _touches(grams(passage.text), self.passages)
        }
        found.passages = len(bad)
        items: list[Item] = []
        for item in dataset.items:
            if _touches(grams(_asked(item)), self.questions):
                found.questions += 1
                continue
            gold = tuple(place for place in item.gold if place not in bad)
            # a question of several steps is no longer answered when one of its passages is gone
            if len(gold) < len(item.gold):
                found.orphans += 1
                continue
            irrelevant = tuple(place for place in item.irrelevant if place not in bad)
            items.append(Item(item.id, item.question, item.answers, gold, irrelevant, item.turns, item.form))
        blank = [
            type(passage)(passage.id, "", "") if place in bad else passage
            for place, passage in enumerate(dataset.passages)
        ]
        return Dataset(dataset.name, dataset.split, blank, items), found


def _asked(item: Item) -> str:
    """The question with what was asked before it: "when was it released?" alone is in every conversation."""
    return " ".join((*(turn.question for turn in item.turns), item.question))


def _touches(runs: Iterable[str], known: set[str]) -> bool:
    return any(run in known for run in runs)
