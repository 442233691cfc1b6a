"""What a model is trained on: one example of one of RankRAG's five kinds, before any tokenizer."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from evenmesh_generator.domain import Passage, Turn

NONE_RELEVANT: Final = "None"
"""Target of retrieval-augmented ranking where no passage is relevant; the paper names no text for it."""


class Kind(StrEnum):
    """The five kinds of stage-II examples (Yu et al., 2024, section 4.2); stage I uses the first alone."""

    SFT = "sft"
    CONTEXT_RICH_QA = "context-rich-qa"
    RETRIEVAL_AUGMENTED_QA = "retrieval-augmented-qa"
    CONTEXT_RANKING = "context-ranking"
    RETRIEVAL_AUGMENTED_RANKING = "retrieval-augmented-ranking"

    @property
    def ranks(self) -> bool:
        """Return whether its examples ask which passages are relevant."""
        return self in (Kind.CONTEXT_RANKING, Kind.RETRIEVAL_AUGMENTED_RANKING)

    @property
    def reads(self) -> bool:
        """Return whether its examples ask for an answer from passages."""
        return self in (Kind.CONTEXT_RICH_QA, Kind.RETRIEVAL_AUGMENTED_QA)


class Form(StrEnum):
    """How a question is put, which decides the prompt's wording."""

    SHORT = "short"
    LONG = "long"
    ARITHMETIC = "arithmetic"
    SHORT_OR_LONG = "short-or-long"
    CLAIM = "claim"


@dataclass(frozen=True, slots=True)
class Shown:
    """A passage as an example shows it.

    ``gold``: annotated (or labelled by 4-gram recall) as the one that answers; ``holds``: it holds an
    accepted answer's words. A passage that holds them without being gold may or may not answer.
    ``altered``: the sentences with the answer were cut out of it.
    """

    passage: Passage
    gold: bool
    holds: bool
    altered: bool = False

    @property
    def irrelevant(self) -> bool:
        """Return whether the passage is neither gold nor holds the answer."""
        return not self.gold and not self.holds


@dataclass(frozen=True, slots=True)
class Example:
    """One training example (x, c, y) in the paper's terms.

    ``answer`` is the text to say, the abstention where nothing shown answers; the ranking kinds are
    judged by ``shown`` and keep it for what else can be learnt from the same passages. ``answers`` are
    all accepted ones.
    """

    kind: Kind
    source: str
    id: str
    question: str
    turns: tuple[Turn, ...]
    shown: tuple[Shown, ...]
    answer: str
    answers: tuple[str, ...]
    form: Form

    @property
    def answerable(self) -> bool:
        """Return whether a passage shown answers, or none needs to."""
        return self.kind is Kind.SFT or any(one.gold or one.holds for one in self.shown)

    @property
    def target(self) -> str:
        """Return what a text model writes: the answer, ``True`` or ``False``, or the relevant passages'
        numbers.
        """
        match self.kind:
            case Kind.CONTEXT_RANKING:
                return str(self.shown[0].gold)
            case Kind.RETRIEVAL_AUGMENTED_RANKING:
                relevant = [
                    str(number) for number, one in enumerate(self.shown, start=1) if one.gold or one.holds
                ]
                return ", ".join(relevant) or NONE_RELEVANT
            case _:
                return self.answer
