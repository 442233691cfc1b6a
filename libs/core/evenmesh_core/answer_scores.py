"""Scores of many answers against many references, each text read once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal, get_args

import numpy as np

from evenmesh_core.arrays import FloatArray
from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_metrics import normalize_answer, rating, rouge_scores
from evenmesh_core.token_overlap import Bags, Check, best_of_bags, f1

AnswerMetric = Literal["exact_match", "token_f1", "rouge1", "rouge2", "rougeL", "accuracy", "rating"]

READ_NS: Final = 100
"""Time to read a character of a text as words; these times are of one core of a small server, rounded up."""
BAG_NS: Final = 500
"""Time to put a word into a bag."""
PAIR_NS: Final = 600
"""Time to compare two bags of words, beside their words."""
TOKEN_NS: Final = 100
"""Time for each word of the smaller of two bags."""
RATING_NS: Final = 20_000
"""Time to compare two ratings."""
SUBSEQUENCE_NS: Final = 16
"""Time for 64 cells of a longest common subsequence."""

_BLOCK_CHARACTERS: Final = 1 << 18  # characters read between two checks: some milliseconds


def best_scores(
    predictions: Sequence[str],
    references: Sequence[str],
    metric: AnswerMetric,
    *,
    check: Callable[[], None] | None = None,
) -> FloatArray:
    """Score each prediction against its best-matching reference: vector [P] in [0, 1].

    The values are those of the function of that name in :mod:`evenmesh_core.text_metrics`, or of its
    ``rouge``, to the last bit. Each different text is read once, and each two are compared once.

    Args:
        predictions: the generated texts, at least one.
        references: the reference texts, at least one.
        metric: how a prediction is scored.
        check: called every few milliseconds; what it raises ends the computation.

    Raises:
        InvalidInput: no predictions, no references, an unknown metric, or as :func:`check_references`.
    """
    for name, texts in (("predictions", predictions), ("references", references)):
        if len(texts) == 0:
            raise InvalidInput(name, texts, "at least one text")
    if metric not in get_args(AnswerMetric):
        raise InvalidInput("metric", metric, ", ".join(map(repr, get_args(AnswerMetric))))
    given, wanted = list(dict.fromkeys(predictions)), list(dict.fromkeys(references))
    scores = dict(zip(given, _scores(given, wanted, metric, check or (lambda: None)).tolist(), strict=True))
    return np.array([scores[one] for one in predictions], dtype=np.float64)


def check_references(references: Sequence[str], metric: AnswerMetric) -> None:
    """Check that references can be compared by a metric.

    Raises:
        InvalidInput: one is no rating from 1 to 5, for "rating".
    """
    if metric == "rating":
        for place, one in enumerate(references):
            try:
                rating("1", one)
            except InvalidInput as error:
                raise InvalidInput(f"references[{place}]", one[:40], "ratings from 1 to 5") from error


def scoring_ns(
    predictions: int, said_characters: int, references: int, held_characters: int, metric: AnswerMetric
) -> int:
    """Return about how long :func:`best_scores` takes, from the number of texts and their characters.

    It is an upper bound of the order of magnitude, for refusing what would take too long. Nanoseconds of one
    core, [0, inf).
    """
    said, held = predictions + said_characters // 2, references + held_characters // 2  # words at most
    pairs = predictions * references
    ns = READ_NS * (said_characters + held_characters)
    if metric == "rougeL":
        return ns + PAIR_NS * pairs + SUBSEQUENCE_NS * said * (held // 64 + references)
    if metric in ("exact_match", "accuracy"):
        return ns
    if metric == "rating":
        return ns + RATING_NS * (pairs + references)
    bags = BAG_NS * (said + held)
    return ns + bags + PAIR_NS * pairs + TOKEN_NS * min(said * references, held * predictions)


def _scores(given: Sequence[str], wanted: Sequence[str], metric: AnswerMetric, check: Check) -> FloatArray:
    if metric == "exact_match" or metric == "accuracy":
        read = normalize_answer if metric == "exact_match" else str.strip
        right = {read(one) for one in _checked(wanted, check)}
        return np.array([float(read(one) in right) for one in _checked(given, check)])
    if metric == "token_f1":
        bags = Bags()
        held = [bags.of(normalize_answer(one).split()) for one in _checked(wanted, check)]
        said = [bags.of(normalize_answer(one).split()) for one in _checked(given, check)]
        return best_of_bags(said, held, f1, check)
    if metric == "rating":
        check_references(wanted, metric)
        return np.array([max(rating(one, truth) for truth in wanted) for one in _checked(given, check)])
    return rouge_scores(given, wanted, metric, check=check)


def _checked(texts: Sequence[str], check: Check) -> Iterator[str]:
    read = 0
    for text in texts:
        read += 8 + len(text)
        if read > _BLOCK_CHARACTERS:
            read = 0
            check()
        yield text
