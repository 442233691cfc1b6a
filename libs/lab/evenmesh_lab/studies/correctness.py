"""Whether the answers of an ensemble are right, and whether the passages hold them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np

from evenmesh_core.arrays import BoolArray, FloatArray
from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_metrics import contains_answer, exact_match, normalize_answer, token_f1
from evenmesh_lab.files.ensembles import Ensemble, EnsembleQuestion
from evenmesh_lab.files.failure import FileError


def _contains(answer: str, references: tuple[str, ...]) -> float:
    return float(any(holds(answer, reference) for reference in references))


JUDGES: Mapping[str, Callable[[str, tuple[str, ...]], float]] = MappingProxyType(
    {"exact_match": exact_match, "containment": _contains, "token_f1": token_f1}
)
"""How answers are compared with references: equal, or containing one as whole words, or by token F1."""


class Judge(Protocol):
    """Judges answers by more than their text, such as a model that reads the question."""

    name: str
    """Its name in reports."""

    def scores(self, question: str, references: Sequence[str], answers: Sequence[str]) -> Sequence[float]:
        """Return how right each answer to a question is, in [0, 1]."""


Judging = str | Judge
"""A name of :data:`JUDGES`, or a judge."""


def name_of(judge: Judging) -> str:
    """Return the name of a judge for reports."""
    return judge if isinstance(judge, str) else judge.name


def holds(text: str, answer: str) -> bool:
    """Return whether a text holds an answer as whole words; False for one without a letter or digit."""
    if not any(character.isalnum() for character in answer):
        return False
    return contains_answer(text, answer)


def correctness(ensemble: Ensemble, judge: Judging) -> FloatArray:
    """Return how correct each answer is, a matrix [N, M] in [0, 1]: by the file, or else by the judge.

    Args:
        ensemble: N questions, M retrievers.
        judge: a name of :data:`JUDGES`, or a judge.

    Raises:
        FileError: a question has neither ``correct`` nor references.
        InvalidInput: an unknown judge.
    """
    if isinstance(judge, str) and judge not in JUDGES:
        raise InvalidInput("judge", judge, ", ".join(JUDGES))
    return np.array([_row(question, judge) for question in ensemble.questions], dtype=np.float64)


def unjudged(ensemble: Ensemble) -> list[str]:
    """Return the ids of the questions that cannot be judged."""
    return [
        question.query_id
        for question in ensemble.questions
        if not question.references and any(one.correct is None for one in question.answers)
    ]


def held(ensemble: Ensemble) -> tuple[BoolArray, BoolArray] | None:
    """Return whether the passages hold a right answer, and the given answer: two matrices [N, M].

    None where a question has no references, or an answer no context.
    """
    for question in ensemble.questions:
        if not question.references or any(one.context is None for one in question.answers):
            return None
    right, given = [], []
    for question in ensemble.questions:
        contexts = [one.context or "" for one in question.answers]
        right.append([_contains(context, question.references) == 1.0 for context in contexts])
        given.append(
            [holds(context, one.answer) for context, one in zip(contexts, question.answers, strict=True)]
        )
    return np.array(right, dtype=np.bool_), np.array(given, dtype=np.bool_)


def same_answer(left: str, right: str) -> float:
    """Return 1.0 if two answers are equal after normalisation, else 0.0."""
    return float(normalize_answer(left) == normalize_answer(right))


def _row(question: EnsembleQuestion, judge: Judging) -> list[float]:
    unjudged = [one.answer for one in question.answers if one.correct is None]
    if unjudged and not question.references:
        raise FileError(
            question.path,
            question.line,
            f"begins query {question.query_id!r}, which has neither references nor correct",
        )
    found = iter(_scores(question, unjudged, judge) if unjudged else ())
    return [next(found) if one.correct is None else one.correct for one in question.answers]


def _scores(question: EnsembleQuestion, answers: Sequence[str], judge: Judging) -> Sequence[float]:
    if isinstance(judge, str):
        return [JUDGES[judge](one, question.references) for one in answers]
    try:
        return judge.scores(question.question, question.references, answers)
    except InvalidInput as error:
        name = f"begins query {question.query_id!r}, which {judge.name} cannot judge"
        raise FileError(question.path, question.line, f"{name}: {error}") from None
