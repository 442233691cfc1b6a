"""Why answers with a retriever are wrong: the retriever, the reader's extraction, its hallucination, or
luck."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from evenmesh_core.arrays import BoolArray, FloatArray, indicators
from evenmesh_core.ensemble.win_ratios import win_matrix
from evenmesh_core.errors import InvalidInput


@dataclass(frozen=True)
class ErrorIndicators:
    """Errors of each of M retrievers on each of N questions: matrices [M, N] of booleans."""

    retriever_error: BoolArray
    """E_r: the documents do not hold the right answer."""
    hallucination_error: BoolArray
    """E_h: the documents do not hold the answer given."""
    extraction_error: BoolArray
    """E_e = (1 − E_r)(1 − E_h)(1 − correct): the wrong part of the right documents."""
    lucky_guess: BoolArray
    """E_lucky = E_r · E_h · correct: right, and not from the documents."""
    wrong: BoolArray
    """Wrong answers as equation 4 puts them together: (1 − E_r)(E_h + E_e) + E_r (1 − E_lucky). It differs
    from "not correct" where the judgements contradict each other: a response judged right that the documents
    do not hold though they hold the right answer, or the other way round."""


def error_indicators(correct: ArrayLike, answer_held: ArrayLike, response_held: ArrayLike) -> ErrorIndicators:
    """Return the errors that occurred, from three judgements of each answer.

    Args:
        correct: matrix [M, N] of 0 and 1: whether the response is right.
        answer_held: matrix [M, N] of 0 and 1: whether the documents hold the right answer.
        response_held: matrix [M, N] of 0 and 1: whether the documents hold the response.

    Source: Li et al. 2024, §3.1, equation 4 (footnote 11 for deterministic systems), appendix B.

    Raises:
        InvalidInput: not matrices of 0 and 1 of the same shape.
    """
    right = indicators("correct", correct, ndim=2)
    answer = indicators("answer_held", answer_held, ndim=2)
    response = indicators("response_held", response_held, ndim=2)
    for name, matrix in (("answer_held", answer), ("response_held", response)):
        if matrix.shape != right.shape:
            raise InvalidInput(f"{name}.shape", matrix.shape, f"{right.shape}, the shape of correct")
    retrieval, hallucination = ~answer, ~response
    extraction = answer & response & ~right
    lucky = retrieval & hallucination & right
    wrong = (answer & (hallucination | extraction)) | (retrieval & ~lucky)
    return ErrorIndicators(retrieval, hallucination, extraction, lucky, wrong)


@dataclass(frozen=True)
class ErrorWinRatios:
    """RWR_E for each error: matrices [M, M], the share of the errors of column j that row i avoids (equation
    5); ``nan`` where j has none that counts (the paper's figures print −1)."""

    retriever_error: FloatArray
    hallucination_error: FloatArray
    extraction_error: FloatArray
    """Over the questions for which both retrievers found documents that hold the answer."""
    lucky_guess: FloatArray
    """Over the questions on which both retrievers and both readers failed the documents (E_r and E_h of
    both)."""


def error_relative_win_ratio(errors: ErrorIndicators) -> ErrorWinRatios:
    """Compare retrievers by the errors that one makes and another avoids.

    Source: Li et al. 2024, §3.2, equation 5, and appendix B for the conditions.
    """
    found = ~errors.retriever_error
    guessed = errors.retriever_error & errors.hallucination_error
    return ErrorWinRatios(
        retriever_error=win_matrix(~errors.retriever_error, errors.retriever_error),
        hallucination_error=win_matrix(~errors.hallucination_error, errors.hallucination_error),
        extraction_error=win_matrix(~errors.extraction_error, errors.extraction_error, found),
        lucky_guess=win_matrix(~errors.lucky_guess, errors.lucky_guess, guessed),
    )
