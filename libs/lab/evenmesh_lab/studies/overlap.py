"""Which of the texts that are asked or shown a model was trained on.

A study of such questions measures memory too: its results are given for the unseen questions first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from evenmesh_lab.files.trained_texts import TrainedTexts
from evenmesh_lab.studies.tables import Cell, Column, Table, text

QUESTIONS: Final = "questions"
PASSAGES: Final = "passages"
UNKNOWN: Final = "unknown"
"""Of a model that carries no hashes of its training."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class OverlapRow:
    """How many of some texts one model was trained on.

    Attributes:
        model: its name.
        what: :data:`QUESTIONS` or :data:`PASSAGES`.
        total: number of different texts.
        seen: how many the model was trained on; None where that is unknown.
        by_chance: how many unseen texts a filter takes for seen ones, on average; None where unknown.
        besides: what the model was trained on and carries no hashes of; empty for nothing.
    """

    model: str
    what: str
    total: int
    seen: int | None
    by_chance: float | None
    besides: str = ""


@dataclass(frozen=True, slots=True)
class Overlap(Generic[K]):
    """The overlap of a study with the training of its models.

    Attributes:
        rows: of each model, its questions first.
        seen: questions that a model was trained on, by their keys.
        questions: keys of all questions.
        known: whether any model carries hashes; if none does, nothing is known of any question.
    """

    rows: tuple[OverlapRow, ...]
    seen: frozenset[K]
    questions: frozenset[K]
    known: bool

    @property
    def unseen(self) -> frozenset[K]:
        """Questions that no model with hashes was trained on; none where nothing is known."""
        return self.questions - self.seen if self.known else frozenset()

    @property
    def parts(self) -> tuple[tuple[str, frozenset[K]], ...]:
        """Names and questions of what is reported apart, the unseen ones first; empty if none was seen."""
        if not self.seen:
            return ()
        both = (("unseen", self.unseen), ("seen", self.seen))
        return tuple((name, mine) for name, mine in both if mine)

    @property
    def statement(self) -> str:
        """One sentence for the head of a report and for the terminal."""
        total = len(self.questions)
        unknown = ", ".join(dict.fromkeys(one.model for one in self.rows if one.seen is None))
        if not self.known:
            who = f" ({unknown})" if unknown else ""
            return (
                f"Whether a model was trained on these {total:,} questions is unknown: none{who} carries "
                "hashes of its training."
            )
        hashed = [one for one in self.rows if one.seen is not None and one.what == QUESTIONS]
        named = ", ".join(one.model for one in hashed if one.seen or not self.seen)
        beside = f" Unknown of {unknown}." if unknown else ""
        if not self.seen:
            return f"None of the {total:,} questions is in the training of {named}.{beside}"
        if not self.unseen:
            return f"All {total:,} questions are in the training of {named}.{beside}"
        return (
            f"{len(self.seen):,} of the {total:,} questions are in the training of {named}: the "
            f"{len(self.unseen):,} unseen ones come first.{beside}"
        )

    def table(self) -> Table:
        """Return a row for each model and kind of text."""
        return Table.of(
            "overlap",
            "Texts of this study that the models were trained on",
            self.rows,
            text("model", "model"),
            text("what", "texts"),
            Column("total", "in this study"),
            Column("seen", "trained on", _seen),
            Column("by_chance", "of these by chance"),
            text("besides", "also, without hashes", lambda row: row.besides or "–"),
            note="Texts are compared without case, white space and punctuation. One that was trained on is "
            "always found; by chance says how many others are taken for such on average. "
            f"A model without hashes is {UNKNOWN}.",
        )


def measure(
    questions: Mapping[K, Sequence[str]],
    models: Mapping[str, TrainedTexts | None],
    passages: Iterable[str] | None = None,
) -> Overlap[K]:
    """Compare the texts of a study with what its models were trained on.

    Args:
        questions: the text of each question by its key, or the texts of a conversation's turns; a question is
            seen if any of its texts is.
        models: what each model was trained on by its name; None where it does not say.
        passages: that are shown or searched; None leaves them out.
    """
    rows: list[OverlapRow] = []
    seen: set[K] = set()
    shown = None if passages is None else list(dict.fromkeys(passages))
    for name, texts in models.items():
        mine = (
            None
            if texts is None
            else {key for key, asked in questions.items() if any(texts.has_question(one) for one in asked)}
        )
        rows.append(_row(name, QUESTIONS, len(questions), None if mine is None else len(mine), texts))
        seen |= mine or set()
        if shown is not None:
            count = None if texts is None else sum(texts.has_passage(one) for one in shown)
            rows.append(_row(name, PASSAGES, len(shown), count, texts))
    known = any(texts is not None for texts in models.values())
    return Overlap(tuple(rows), frozenset(seen), frozenset(questions), known)


def _row(name: str, what: str, total: int, seen: int | None, texts: TrainedTexts | None) -> OverlapRow:
    if texts is None or seen is None:
        return OverlapRow(name, what, total, None, None)
    return OverlapRow(
        name, what, total, seen, (total - seen) * texts.false_positives, ", ".join(texts.unhashed)
    )


def _seen(row: OverlapRow) -> Cell:
    return UNKNOWN if row.seen is None else row.seen
