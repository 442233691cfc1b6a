"""The inconsistency study: how retrievers disagree, and what kinds of errors they lead to.

Source: Li et al. 2024, §2, §3, §4 (figure 5), appendix B.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evenmesh_core.arrays import BoolArray, FloatArray, IntArray
from evenmesh_core.ensemble import (
    ErrorWinRatios,
    UpperBounds,
    WinRatios,
    error_indicators,
    error_relative_win_ratio,
    relative_win_ratio,
    similarity_matrix,
    upper_bound,
)
from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.files.ensembles import Ensemble
from evenmesh_lab.studies.correctness import Judging, correctness, held, name_of, same_answer
from evenmesh_lab.studies.exposure import comparison_table
from evenmesh_lab.studies.tables import Column, Table, text
from evenmesh_lab.studies.uncertainty import (
    UNIT,
    Bootstrap,
    Comparison,
    adjusted,
    bootstrap_share,
    by_query,
    compare,
)

KINDS = ("retriever_error", "hallucination_error", "extraction_error", "lucky_guess")
KIND_LABELS = {
    "retriever_error": "retriever error",
    "hallucination_error": "hallucination",
    "extraction_error": "extraction error",
    "lucky_guess": "lucky guess",
}
_MOST_POOLED = 20  # retrievers whose pools are not too many to list


@dataclass(frozen=True, slots=True)
class RetrieverSummary:
    """One retriever."""

    retriever: str
    accuracy: BootstrapInterval
    mrwr: BootstrapInterval
    """Mean relative win ratio."""
    mrlr: BootstrapInterval
    """Mean relative lose ratio."""
    errors: dict[str, BootstrapInterval]
    """Share of the questions with each kind of error; empty without contexts."""
    consistency: BootstrapInterval | None
    """How often two samples of a question give the same answer; None where none was asked twice."""


@dataclass(frozen=True, slots=True)
class InconsistencyStudy:
    """Results of the study."""

    retrievers: tuple[str, ...]
    judge: str
    threshold: float
    """Correctness from which an answer is right."""
    bootstrap: Bootstrap
    query_ids: tuple[str, ...]
    """The query of each of N questions."""
    samples: tuple[int | None, ...]
    correct: BoolArray
    """Matrix [M, N]: whether each answer is right."""
    errors: dict[str, BoolArray]
    """By kind, a matrix [M, N]; empty without contexts."""
    win_ratios: WinRatios
    error_win_ratios: ErrorWinRatios | None
    upper_bounds: UpperBounds | None
    """None with more than 20 retrievers."""
    agreement: FloatArray
    """Matrix [M, M]: share of the questions on which two retrievers led to the same answer."""
    summaries: tuple[RetrieverSummary, ...]
    comparisons: tuple[Comparison, ...]
    """The best retriever against each other."""

    def tables(self) -> tuple[Table, ...]:
        """Return retrievers, (error) win ratios, agreement, upper bounds, comparisons and questions."""
        return tuple(table for table in _tables(self) if table.rows)


def measure(
    ensemble: Ensemble,
    *,
    judge: Judging = "exact_match",
    threshold: float = 0.5,
    bootstrap: Bootstrap | None = None,
) -> InconsistencyStudy:
    """Compare retrievers by the answers they lead to.

    Args:
        ensemble: the questions and their answers.
        judge: how answers are compared with references where the file has no correctness.
        threshold: correctness from which (inclusive) an answer is right, for judges with degrees.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a question that cannot be judged.
        InvalidInput: an argument out of range, or fewer than two retrievers.
    """
    settings = bootstrap or Bootstrap()
    names = ensemble.retrievers
    if len(names) < 2:
        raise InvalidInput("retrievers", list(names), "at least 2")
    correct: BoolArray = (correctness(ensemble, judge) >= threshold).T
    queries = [question.query_id for question in ensemble.questions]
    errors, error_ratios = {}, None
    found = held(ensemble)
    if found is not None:
        indicators = error_indicators(correct, found[0].T, found[1].T)
        errors = {kind: getattr(indicators, kind) for kind in KINDS}
        error_ratios = error_relative_win_ratio(indicators)
    agreement = np.mean(
        [
            similarity_matrix([one.answer for one in question.answers], same_answer)
            for question in ensemble.questions
        ],
        axis=0,
    )
    ratios = Ratios(correct)
    summaries = tuple(
        _summary(place, ensemble, queries, ratios, errors, settings) for place in range(len(names))
    )
    return InconsistencyStudy(
        retrievers=names,
        judge=name_of(judge),
        threshold=threshold,
        bootstrap=settings,
        query_ids=tuple(queries),
        samples=tuple(question.sample for question in ensemble.questions),
        correct=correct,
        errors=errors,
        win_ratios=relative_win_ratio(correct),
        error_win_ratios=error_ratios,
        upper_bounds=upper_bound(correct) if len(names) <= _MOST_POOLED else None,
        agreement=agreement,
        summaries=summaries,
        comparisons=_comparisons(names, queries, correct, settings),
    )


class Ratios:
    """Win ratios over some of the questions, computed once for the same ones.

    Args:
        correct: matrix [M, N], as :attr:`InconsistencyStudy.correct`.
    """

    def __init__(self, correct: BoolArray) -> None:
        self.correct = correct
        self._known: dict[bytes, WinRatios] = {}

    def of(self, points: IntArray) -> WinRatios:
        """Return the win ratios over the questions at these indices, with repeats."""
        key = points.tobytes()
        if key not in self._known:
            self._known[key] = relative_win_ratio(self.correct[:, points])
        return self._known[key]

    def intervals(
        self, place: int, queries: Sequence[Hashable], bootstrap: Bootstrap
    ) -> tuple[BootstrapInterval, BootstrapInterval]:
        """Return the mean relative win ratio and lose ratio of the retriever at ``place``.

        Args:
            place: row of the matrix.
            queries: the query of each of N questions.
            bootstrap: how intervals are computed.
        """

        def mrwr(points: IntArray) -> float:
            return float(self.of(points).mrwr[place])

        def mrlr(points: IntArray) -> float:
            return float(self.of(points).mrlr[place])

        wrong = (~self.correct).sum(axis=1)
        others = np.delete(wrong, place)
        least = int(others[others > 0].min(initial=len(queries)))
        # One name, so that all retrievers are compared on the same resamples, each of them once.
        return (
            bootstrap.ratio("win ratios", queries, mrwr, counted=least),
            bootstrap.ratio("win ratios", queries, mrlr, counted=int(wrong[place])),
        )


def _summary(
    place: int,
    ensemble: Ensemble,
    queries: Sequence[str],
    ratios: Ratios,
    errors: dict[str, BoolArray],
    bootstrap: Bootstrap,
) -> RetrieverSummary:
    name = ensemble.retrievers[place]

    def mean(label: str, values: BoolArray) -> BootstrapInterval:
        return bootstrap_share(bootstrap, f"{label} {name}", queries, values)

    return RetrieverSummary(
        name,
        mean("accuracy", ratios.correct[place]),
        *ratios.intervals(place, queries, bootstrap),
        {kind: mean(kind, matrix[place]) for kind, matrix in errors.items()},
        _consistency(place, ensemble, bootstrap),
    )


def _consistency(place: int, ensemble: Ensemble, bootstrap: Bootstrap) -> BootstrapInterval | None:
    answers: dict[str, list[str]] = {}
    for question in ensemble.questions:
        answers.setdefault(question.query_id, []).append(question.answers[place].answer)
    shares = []
    for given in answers.values():
        if len(given) > 1:
            alike = similarity_matrix(given, same_answer)
            shares.append(float((alike.sum() - len(given)) / (len(given) * (len(given) - 1))))
    if not shares:
        return None
    return bootstrap.mean(f"consistency {ensemble.retrievers[place]}", shares, within=UNIT)


def _comparisons(
    names: Sequence[str], queries: Sequence[str], correct: BoolArray, bootstrap: Bootstrap
) -> tuple[Comparison, ...]:
    columns = [by_query(queries, row) for row in correct]
    best = int(np.argmax(correct.mean(axis=1)))
    found = [
        compare(bootstrap, "accuracy", (names[best], columns[best]), (names[other], columns[other]))
        for other in range(len(names))
        if other != best
    ]
    return adjusted([one for one in found if one is not None])


def _tables(study: InconsistencyStudy) -> Iterable[Table]:
    kinds = tuple(study.errors)
    consistency = [Column("consistency", "same answer again")]
    yield Table.of(
        "retrievers",
        f"Retrievers, answers judged by {study.judge}",
        study.summaries,
        text("retriever", "retriever"),
        Column("accuracy", "accuracy"),
        Column("mrwr", "mean win ratio"),
        Column("mrlr", "mean lose ratio"),
        *(Column(kind, KIND_LABELS[kind], ("errors", kind)) for kind in kinds),
        *(consistency if any(one.consistency is not None for one in study.summaries) else ()),
        note="Win ratio: share of the questions another gets wrong that this one gets right.",
    )
    title = "Relative win ratio: the row is right where the column is wrong"
    yield _square("win-ratios", title, study, study.win_ratios.matrix)
    if study.error_win_ratios is not None:
        for kind in KINDS:
            matrix: FloatArray = getattr(study.error_win_ratios, kind)
            title = f"Relative win ratio, {KIND_LABELS[kind]}: the row avoids what the column commits"
            yield _square(f"win-ratios-{kind.replace('_', '-')}", title, study, matrix)
    yield _square("agreement", "Share of questions with the same answer", study, study.agreement)
    if study.upper_bounds is not None:
        yield Table("upper-bounds", "Accuracy of a perfect vote", POOLS, tuple(pools(study.upper_bounds)))
    yield comparison_table(study.comparisons, {})
    yield Table(
        "questions",
        "Each question",
        (
            text("query_id", "query"),
            Column("sample", "sample"),
            *(Column(f"correct_{name}", name) for name in study.retrievers),
            *(
                Column(f"{kind}_{name}", f"{KIND_LABELS[kind]}, {name}")
                for kind in kinds
                for name in study.retrievers
            ),
        ),
        tuple(
            (
                query,
                study.samples[place],
                *(int(right) for right in study.correct[:, place]),
                *(int(one) for kind in kinds for one in study.errors[kind][:, place]),
            )
            for place, query in enumerate(study.query_ids)
        ),
    )


POOLS = (
    Column("retrievers", "retrievers"),
    Column("pools", "pools"),
    Column("mean", "mean"),
    Column("lowest", "lowest"),
    Column("highest", "highest"),
)
"""Columns of :func:`pools`."""


def pools(bounds: UpperBounds) -> Iterable[tuple[int, int, float, float, float]]:
    """Yield for each number of retrievers: it, its pools, and their mean, lowest and highest accuracy."""
    for size, accuracies in enumerate(bounds.by_size, start=1):
        yield size, len(accuracies), float(accuracies.mean()), float(accuracies[0]), float(accuracies[-1])


def _square(name: str, title: str, study: InconsistencyStudy, values: FloatArray) -> Table:
    return Table(
        name,
        title,
        (text("retriever", "retriever"), *(Column(other, other) for other in study.retrievers)),
        tuple((row, *values[place].tolist()) for place, row in enumerate(study.retrievers)),
    )
