"""Fit a template with its question, passages and turns into what a model reads.

A prompt that does not fit loses turns, the oldest first, then whole passages from the end, then the end of
its only passage; the question is never cut. A template without a place for turns loses all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from evenmesh.wire.errors import InvalidField
from evenmesh_generator.domain import Passage, Turn
from evenmesh_generator.prompts import Template, cut_to_fit, most, most_passages

Row = TypeVar("Row")

RANKING_TEMPLATE: Final = "rankrag-context-ranking"
"""The prompt whose P(True) is the relevance (Yu et al., 2024, appendix D.1)."""


@dataclass(frozen=True, slots=True)
class Fitted(Generic[Row]):
    """A prompt of all passages, and what was left out of it: last passages, oldest turns, the end of one."""

    row: Row
    dropped_passages: int
    cut_passages: int
    dropped_turns: int


@dataclass(frozen=True, slots=True)
class PromptFitter(Generic[Row]):
    """Fits a template with a question into ``limit``, in the unit of ``size``.

    Attributes:
        template: the template.
        question: the question, whole.
        limit: largest row.
        make: turns a rendered prompt into what the model reads.
        size: returns the size of that.
        too_long: returns the error of a question that does not fit, given its size and the limit.
    """

    template: Template
    question: str
    limit: int
    make: Callable[[str], Row]
    size: Callable[[Row], int]
    too_long: Callable[[int, int], InvalidField]

    def row(self, passages: Sequence[Passage], turns: Sequence[Turn]) -> Row:
        """Return what the model reads."""
        return self.make(self.template.render(self.question, passages, turns))

    def fits(self, passages: Sequence[Passage], turns: Sequence[Turn]) -> bool:
        """Return whether it is short enough."""
        return self.size(self.row(passages, turns)) <= self.limit

    def check(self, row: Row) -> None:
        """Raise InvalidField if the question itself is too long."""
        size = self.size(row)
        if size > self.limit:
            raise self.too_long(size, self.limit)

    def fit(self, passages: Sequence[Passage], turns: Sequence[Turn]) -> Fitted[Row]:
        """Return the prompt of all passages that fit.

        Raises:
            InvalidField: the question alone does not fit.
        """
        shown = self.turns_that_fit(turns, [passages])
        kept = most_passages(passages, lambda some: self.fits(some, shown))
        cut = False
        if passages and not kept:
            row, cut = self.row_of(passages[0], shown)
            kept = 1
        else:
            row = self.row(passages[:kept], shown)
        self.check(row)
        return Fitted(row, len(passages) - kept, int(cut), len(turns) - len(shown))

    def turns_that_fit(self, turns: Sequence[Turn], shown: Sequence[Sequence[Passage]]) -> Sequence[Turn]:
        """Return the newest turns with which each of ``shown`` fits; none if the template shows none."""
        if not self.template.shows_turns:
            return ()
        if not turns or not shown:
            return turns

        def fit(count: int) -> bool:
            return all(self.fits(passages, turns[len(turns) - count :]) for passages in shown)

        return turns if fit(len(turns)) else turns[len(turns) - most(len(turns), fit) :]

    def row_of(self, passage: Passage, turns: Sequence[Turn]) -> tuple[Row, bool]:
        """Return the prompt of one passage, cut to what fits beside the question, and whether it was cut."""
        row = self.row([passage], turns)
        if self.size(row) <= self.limit:
            return row, False
        cut = cut_to_fit(passage, lambda shown: self.fits([shown], turns))
        # Where not one word fits the title alone may, or the question is what is too long.
        row = self.row([Passage(passage.id, passage.title, "") if cut is None else cut], turns)
        self.check(row)
        return row, True
