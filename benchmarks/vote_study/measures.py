"""What the records say: accuracy of retrievers and votes, their differences, bounds and inconsistency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from benchmarks.vote_study.retrievers import ALL, NAMES
from benchmarks.vote_study.sets import KNOWN_BY, TESTED, TRAINED
from evenmesh_core.arrays import BoolArray, FloatArray
from evenmesh_core.ensemble.similarities import containment_em, similarity_matrix
from evenmesh_core.ensemble.votes import vote
from evenmesh_core.ensemble.weight_search import search_weights
from evenmesh_core.ensemble.win_ratios import relative_win_ratio, upper_bound
from evenmesh_core.proportions import paired_difference_interval
from evenmesh_core.significance import mcnemar
from evenmesh_core.text_metrics import normalize_answer, token_f1

LEARNED, EQUAL, PERFECT = "learned", "equal", "perfect"
RARE: Final = 0.05
"""Relative win ratio that V3 asks of a pair."""


@dataclass(frozen=True)
class Answered:
    """Answers to the same questions, in the order asked; the first are for training.

    Attributes:
        names: of the M voters: retrievers, or readers and retrievers.
        right: whether each is right, ``[questions, M]``.
        exact: whether each is exactly right.
        likeness: by token F1 and containment, ``[questions, 2, M, M]``.
        trained: questions that weights are learned on.
    """

    names: tuple[str, ...]
    right: BoolArray
    exact: BoolArray
    likeness: FloatArray
    trained: int

    @classmethod
    def of(cls, by_reader: Mapping[str, Sequence[Mapping[str, Any]]]) -> Self:
        """Return the answers of readers to the questions that all of them were asked.

        Args:
            by_reader: by reader rows of ``question``, ``answers``, ``right`` and ``exact``.
        """
        of_question = [{row["question"]: row for row in rows} for rows in by_reader.values()]
        asked = [one for one in of_question[0] if all(one in some for some in of_question)]
        rows = [[some[one] for some in of_question] for one in asked]
        of_all = tuple(f"{reader} {one}" for reader in by_reader for one in NAMES)
        return cls(
            NAMES if len(by_reader) == 1 else of_all,
            np.array([[value for row in some for value in row["right"]] for some in rows], dtype=np.bool_),
            np.array([[value for row in some for value in row["exact"]] for some in rows], dtype=np.bool_),
            np.array([_likeness([value for row in some for value in row["answers"]]) for some in rows]),
            TRAINED if len(asked) == TRAINED + TESTED else len(asked) // 3,
        )

    @property
    def test(self) -> slice:
        """The questions that votes are tested on."""
        return slice(self.trained, None)


@dataclass(frozen=True)
class Weights:
    """What a vote weighs.

    Attributes:
        metrics: of token F1 and containment, ``[2]``.
        voters: of the M voters.
    """

    metrics: FloatArray
    voters: FloatArray

    @classmethod
    def equal(cls, found: Answered) -> Self:
        """Return weights of one."""
        return cls(np.ones(found.likeness.shape[1]), np.ones(len(found.names)))

    @classmethod
    def learned(cls, found: Answered) -> Self:
        """Return those that do best on the training questions, by a search that takes up to 25 seconds."""
        begin = slice(found.trained)
        search = search_weights(found.likeness[begin], found.right[begin].astype(np.float64))
        return cls(search.metric_weights, search.retriever_weights)


@dataclass(frozen=True)
class Voted:
    """A vote's outcome.

    Attributes:
        right: whether it is right on each test question.
        exact: whether exactly.
        trained: its accuracy on the training questions, [0, 1].
    """

    right: BoolArray
    exact: BoolArray
    trained: float


def voted(found: Answered, weights: Weights) -> Voted:
    """Let the voters vote on the test questions."""
    winners = np.array([vote(one, weights.metrics, weights.voters).winner for one in found.likeness])
    every = np.arange(len(winners))
    right, exact = found.right[every, winners], found.exact[every, winners]
    return Voted(right[found.test], exact[found.test], float(right[: found.trained].mean()))


def recommended(found: Answered) -> int:
    """Return the voter with the most right answers to the training questions, the first of equals."""
    return int(np.argmax(found.right[: found.trained].sum(axis=0)))


def best_on_test(found: Answered) -> int:
    """Return the voter with the most right answers to the test questions, the first of equals."""
    return int(np.argmax(found.right[found.test].sum(axis=0)))


def single(found: Answered) -> list[dict[str, Any]]:
    """Return a row for each voter: right and exact answers, and mean lose ratio."""
    right = found.right[found.test]
    ratios = relative_win_ratio(right.T)
    return [
        {
            "voter": name,
            "questions": len(right),
            "right": int(right[:, place].sum()),
            "exact": int(found.exact[found.test][:, place].sum()),
            "trained_right": int(found.right[: found.trained, place].sum()),
            "mean_lose_ratio": float(ratios.mrlr[place]),
        }
        for place, name in enumerate(found.names)
    ]


def against(first: BoolArray, second: BoolArray) -> dict[str, Any]:
    """Return how two compare on the same questions: counts, difference, Tango's interval, McNemar's p."""
    test = mcnemar(first, second)
    low, high = paired_difference_interval(test.only_first, test.only_second, len(first))
    return {
        "questions": len(first),
        "only_first": test.only_first,
        "only_second": test.only_second,
        "difference": (test.only_first - test.only_second) / len(first),
        "low": low,
        "high": high,
        "p": test.p_value,
    }


def bounds(found: Answered) -> list[float]:
    """Return the mean accuracy of a perfect vote over all pools of 1, 2, … retrievers, on test questions."""
    return [float(one) for one in upper_bound(found.right[found.test].T).mean]


def outvoted(found: Answered, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how voters stand where a vote with equal weights is wrong though one of them is right.

    Args:
        found: answers to the questions of ``rows``, in their order.
        rows: of ``answers`` and ``right``.
    """
    right = voted(found, Weights.equal(found)).right
    tested = rows[found.trained :]
    lost = [row for row, won in zip(tested, right, strict=True) if not won and any(row["right"])]
    wrong = [_most_alike(row) for row in lost]
    hits = [sum(row["right"]) for row in lost]
    return {
        "outvoted": len(lost),
        "same_wrong": float(np.median(wrong)) if lost else np.nan,
        "right": float(np.median(hits)) if lost else np.nan,
        "wrong_are_more": sum(one > other for one, other in zip(wrong, hits, strict=True)),
    }


def inconsistency(data: str, found: Answered) -> dict[str, Any]:
    """Return relative win ratios of the ordered pairs of retrievers that can know a data set's answers."""
    places = [
        place for place, name in enumerate(found.names) if name.startswith((f"{ALL}-", f"{KNOWN_BY[data]}-"))
    ]
    # Row m, column n: of the questions that n gets wrong, the share that m gets right.
    matrix = relative_win_ratio(found.right[found.test][:, places].T).matrix
    pairs = matrix[~np.eye(len(places), dtype=np.bool_)]
    known = pairs[~np.isnan(pairs)]
    return {
        "retrievers": len(places),
        "pairs": len(known),
        "above": int((known > RARE).sum()),
        "least": float(known.min()),
        "middle": float(np.median(known)),
        "most": float(known.max()),
    }


def _most_alike(row: Mapping[str, Any]) -> int:
    """Return how many voters gave the wrong answer that most of them gave."""
    given = zip(row["answers"], row["right"], strict=True)
    return max(Counter(normalize_answer(one) for one, is_right in given if not is_right).values())


def _likeness(answers: Sequence[str]) -> FloatArray:
    """Return the similarities of answers, ``[2, M, M]``; equal ones are compared once."""
    distinct = list(dict.fromkeys(answers))
    places = np.array([distinct.index(one) for one in answers])
    found = [similarity_matrix(distinct, one) for one in (_f1, containment_em)]
    return np.array([one[np.ix_(places, places)] for one in found])


def _f1(left: str, right: str) -> float:
    return token_f1(left, [right])
