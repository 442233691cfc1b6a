"""How retrievers disagree, and whether one system is better than another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ragcore import ensemble
from ragcore.arrays import BoolArray, FloatArray
from ragcore.significance import McNemar, PairedBootstrap, mcnemar, paired_bootstrap
from ragcore.text_metrics import exact_match, normalize_answer
from services.evaluator.evaluation.resampling import Resampling


@dataclass(frozen=True, slots=True)
class RetrieversQuestion:
    """For each of N questions the answers of M retrievers and the right ones; where there are contexts, the
    passages of each retriever as one text."""

    answers: Sequence[Sequence[str]]
    references: Sequence[Sequence[str]]
    contexts: Sequence[Sequence[str]] | None


@dataclass(frozen=True, slots=True)
class RetrieversMeasured:
    """Win ratios, upper bounds and accuracy [M]; kinds of errors [M, N] where there are contexts."""

    correct: BoolArray
    wins: ensemble.WinRatios
    bounds: ensemble.UpperBounds
    accuracy: FloatArray
    errors: ensemble.ErrorIndicators | None


def compare_retrievers(question: RetrieversQuestion) -> RetrieversMeasured:
    """Compares retrievers ("Ensemble of Retrievers", equations 1 to 4, appendix B).

    An answer is right if it is exactly one of the references after SQuAD normalisation; a context holds a
    text if it holds its normalised words in a row. A text without words is held by none.

    Raises:
        InvalidInput: fewer than 2 retrievers or more than 20.
    """
    right = [
        [exact_match(answer, references) > 0 for answer in answers]
        for answers, references in zip(question.answers, question.references, strict=True)
    ]
    correct = np.array(right, np.bool_).T
    errors = None
    if question.contexts is not None:
        answer_held, response_held = [], []
        for answers, references, contexts in zip(
            question.answers, question.references, question.contexts, strict=True
        ):
            held = [f" {normalize_answer(context)} " for context in contexts]
            wanted = [_words(reference) for reference in references]
            answer_held.append([any(one and one in context for one in wanted) for context in held])
            given = [_words(answer) for answer in answers]
            response_held.append(
                [bool(one) and one in context for one, context in zip(given, held, strict=True)]
            )
        errors = ensemble.error_indicators(correct, np.array(answer_held).T, np.array(response_held).T)
    return RetrieversMeasured(
        correct=correct,
        wins=ensemble.relative_win_ratio(correct),
        bounds=ensemble.upper_bound(correct),
        accuracy=correct.mean(axis=1),
        errors=errors,
    )


@dataclass(frozen=True, slots=True)
class SystemsQuestion:
    """Values [Q] of two systems for the same queries."""

    first: FloatArray
    second: FloatArray
    resampling: Resampling


@dataclass(frozen=True, slots=True)
class SystemsMeasured:
    """The paired bootstrap, and McNemar's test where every value is 0 or 1."""

    bootstrap: PairedBootstrap
    mcnemar: McNemar | None


def compare_systems(question: SystemsQuestion, check: Callable[[], None]) -> SystemsMeasured:
    """Compares two systems by their difference on the same queries.

    Args:
        question: the systems.
        check: called again and again; what it raises ends the computation.

    Raises:
        InvalidInput: arguments that do not fit each other.
    """
    resampling = question.resampling
    bootstrap = paired_bootstrap(
        question.first,
        question.second,
        level=resampling.level,
        method=resampling.method,
        num_resamples=resampling.num_resamples,
        rng=resampling.seed,
        check=check,
    )
    binary = bool(np.isin(question.first, (0, 1)).all() and np.isin(question.second, (0, 1)).all())
    return SystemsMeasured(bootstrap, mcnemar(question.first, question.second) if binary else None)


def _words(text: str) -> str:
    words = normalize_answer(text)
    return words and f" {words} "
