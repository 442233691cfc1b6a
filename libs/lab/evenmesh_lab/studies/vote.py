"""The vote study: the gain of an ensemble of retrievers whose answers vote.

Source: Li et al. 2024, §4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from evenmesh_core.arrays import FloatArray
from evenmesh_core.ensemble import Pooling, Vote, agreement, search_weights, vote
from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.files.ensembles import Ensemble
from evenmesh_lab.similarities.similarity import Similarity
from evenmesh_lab.studies.correctness import Judging, correctness, unjudged
from evenmesh_lab.studies.exposure import comparison_table
from evenmesh_lab.studies.tables import Cell, Column, Table, text
from evenmesh_lab.studies.uncertainty import (
    Bootstrap,
    Comparison,
    adjusted,
    bootstrap_share,
    by_query,
    compare,
)


@dataclass(frozen=True, slots=True)
class Voting:
    """How answers vote."""

    similarities: tuple[Similarity, ...]
    """K ways to compare answers."""
    similarity_weights: tuple[float, ...] | None = None
    """One for each; None means the same."""
    retriever_weights: tuple[float, ...] | None = None
    """One for each retriever; None means the same."""
    pooling: Pooling = "mean"
    threshold: float = 0.8
    retriever_filter: float = 0.1
    drop_filtered: bool = False
    max_weight: float = 0.6
    """Upper bound of every weight that is searched for."""


@dataclass(frozen=True, slots=True)
class VoteRow:
    """One question."""

    query_id: str
    sample: int | None
    winner: str
    """The retriever whose answer won."""
    answer: str
    score: float
    """``nan`` for a lone survivor without voters."""
    agreement: float
    """Share of the other answers that are alike to the winner's; ``nan`` with no other."""
    correct: float
    """Correctness of the winning answer; ``nan`` where unknown."""


@dataclass(frozen=True, slots=True)
class TunedWeights:
    """Weights found on training questions."""

    similarity_weights: tuple[float, ...]
    retriever_weights: tuple[float, ...]
    correctness: float
    """Mean correctness of the winners on the training questions."""
    num_questions: int
    trace: tuple[tuple[int, float], ...]
    """Progress of the search: the evaluations, from 1, that raised the best correctness, and its values."""
    num_evaluations: int


@dataclass(frozen=True, slots=True)
class VoteStudy:
    """Results of the study."""

    retrievers: tuple[str, ...]
    similarities: tuple[str, ...]
    similarity_weights: tuple[float, ...]
    retriever_weights: tuple[float, ...]
    pooling: Pooling
    tuned: TunedWeights | None
    bootstrap: Bootstrap
    rows: tuple[VoteRow, ...]
    wins: tuple[int, ...]
    """Number of wins of each retriever."""
    accuracy: BootstrapInterval | None
    """Mean correctness of the winners; None where that is not known. So are the next three."""
    retriever_accuracy: tuple[BootstrapInterval, ...] | None
    best_possible: BootstrapInterval | None
    """Mean correctness of the best answer to each question: what a perfect vote reaches."""
    comparisons: tuple[Comparison, ...] | None
    """The vote against each retriever."""
    agreement: BootstrapInterval

    def tables(self) -> tuple[Table, ...]:
        """Return summary, comparisons and each question, in this order."""
        return tuple(table for table in _tables(self) if table.rows)


def measure(
    ensemble: Ensemble,
    voting: Voting,
    *,
    judge: Judging = "exact_match",
    training: Ensemble | None = None,
    bootstrap: Bootstrap | None = None,
) -> VoteStudy:
    """Let the answers to each question vote.

    Args:
        ensemble: the questions and their answers.
        voting: how answers vote; its weights are ignored with ``training``.
        judge: how answers are compared with references where the file has no correctness.
        training: questions to search the weights on, of the same retrievers; not those of ``ensemble``.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a training question that cannot be judged.
        InvalidInput: weights that do not match, other retrievers in training, or an option out of range.
    """
    settings = bootstrap or Bootstrap()
    names = ensemble.retrievers
    if training is not None and training.retrievers != names:
        raise InvalidInput("training.retrievers", list(training.retrievers), f"{list(names)}, as in ensemble")
    tuned = None if training is None else tune(training, voting, judge=judge)
    metric_weights = _weights("similarity_weights", voting.similarity_weights, len(voting.similarities))
    retriever_weights = _weights("retriever_weights", voting.retriever_weights, len(names))
    if tuned is not None:
        metric_weights, retriever_weights = tuned.similarity_weights, tuned.retriever_weights
    correct = None if unjudged(ensemble) else correctness(ensemble, judge)
    shares = np.array(metric_weights) / sum(metric_weights) if sum(metric_weights) > 0 else None
    rows, winners = [], []
    for place, (question, square) in enumerate(
        zip(ensemble.questions, _squares(ensemble, voting), strict=True)
    ):
        outcome = _vote(square, metric_weights, retriever_weights, voting)
        combined = np.tensordot(shares, square, axes=1) if shares is not None else square[0]
        winners.append(outcome.winner)
        rows.append(
            VoteRow(
                query_id=question.query_id,
                sample=question.sample,
                winner=names[outcome.winner],
                answer=question.answers[outcome.winner].answer,
                score=float(outcome.scores[outcome.winner]),
                agreement=agreement(combined, outcome.winner, threshold=voting.threshold),
                correct=float("nan") if correct is None else float(correct[place, outcome.winner]),
            )
        )
    queries = [row.query_id for row in rows]

    def mean(label: str, values: Sequence[float] | FloatArray) -> BootstrapInterval:
        return bootstrap_share(settings, label, queries, values)

    known = correct is not None
    return VoteStudy(
        retrievers=names,
        similarities=tuple(one.name for one in voting.similarities),
        similarity_weights=tuple(metric_weights),
        retriever_weights=tuple(retriever_weights),
        pooling=voting.pooling,
        tuned=tuned,
        bootstrap=settings,
        rows=tuple(rows),
        wins=tuple(winners.count(place) for place in range(len(names))),
        accuracy=mean("accuracy vote", [row.correct for row in rows]) if known else None,
        retriever_accuracy=None
        if correct is None
        else tuple(mean(f"accuracy {name}", correct[:, place]) for place, name in enumerate(names)),
        best_possible=None if correct is None else mean("best possible", correct.max(axis=1)),
        comparisons=None if correct is None else _comparisons(rows, names, correct, settings),
        agreement=mean("agreement", [row.agreement for row in rows]),
    )


def outcomes(ensemble: Ensemble, voting: Voting, *, judge: Judging = "exact_match") -> list[float]:
    """Return how correct the winning answer to each question is.

    Args:
        ensemble: the questions and their answers.
        voting: how answers vote.
        judge: as :func:`measure`.

    Raises:
        FileError: a question that cannot be judged.
        InvalidInput: weights that do not match, or an option out of range.
    """
    metric_weights = _weights("similarity_weights", voting.similarity_weights, len(voting.similarities))
    retriever_weights = _weights("retriever_weights", voting.retriever_weights, len(ensemble.retrievers))
    correct = correctness(ensemble, judge)
    return [
        float(correct[place, _vote(square, metric_weights, retriever_weights, voting).winner])
        for place, square in enumerate(_squares(ensemble, voting))
    ]


def tune(training: Ensemble, voting: Voting, *, judge: Judging = "exact_match") -> TunedWeights:
    """Search the weights with which the winners are right most often.

    Args:
        training: the questions and their answers.
        voting: how answers vote; its weights are ignored.
        judge: as :func:`measure`.

    Raises:
        FileError: a question that cannot be judged.
        InvalidInput: an option out of range.
    """
    found = search_weights(
        np.array(list(_squares(training, voting))),
        correctness(training, judge),
        pooling=voting.pooling,
        threshold=voting.threshold,
        retriever_filter=voting.retriever_filter,
        drop_filtered=voting.drop_filtered,
        max_weight=voting.max_weight,
    )
    return TunedWeights(
        tuple(found.metric_weights.tolist()),
        tuple(found.retriever_weights.tolist()),
        found.correctness,
        len(training.questions),
        _rises(found.trace),
        len(found.trace),
    )


def _rises(trace: FloatArray) -> tuple[tuple[int, float], ...]:
    rises = np.flatnonzero(np.diff(trace, prepend=-1.0) > 0)
    return tuple((int(place) + 1, float(trace[place])) for place in rises)


def _squares(ensemble: Ensemble, voting: Voting) -> Iterable[FloatArray]:
    """Yield the similarities [K, M, M] of the answers to each question."""
    for question in ensemble.questions:
        answers = [one.answer for one in question.answers]
        yield np.stack([one.matrix(answers, question=question.question) for one in voting.similarities])


def _vote(
    square: FloatArray,
    metric_weights: tuple[float, ...],
    retriever_weights: tuple[float, ...],
    voting: Voting,
) -> Vote:
    return vote(
        square,
        metric_weights,
        retriever_weights,
        pooling=voting.pooling,
        threshold=voting.threshold,
        retriever_filter=voting.retriever_filter,
        drop_filtered=voting.drop_filtered,
    )


def _weights(name: str, given: tuple[float, ...] | None, wanted: int) -> tuple[float, ...]:
    if given is None:
        return (1.0,) * wanted
    if len(given) != wanted:
        raise InvalidInput(name, list(given), f"{wanted} numbers from 0")
    return given


def _comparisons(
    rows: Sequence[VoteRow], names: Sequence[str], correct: FloatArray, bootstrap: Bootstrap
) -> tuple[Comparison, ...]:
    queries = [row.query_id for row in rows]
    won = by_query(queries, [row.correct for row in rows])
    found = [
        compare(bootstrap, "accuracy", ("vote", won), (name, by_query(queries, correct[:, place])))
        for place, name in enumerate(names)
    ]
    return adjusted([one for one in found if one is not None])


def weighted_similarities(study: VoteStudy) -> str:
    """Return the similarities of a vote with their weights."""
    pairs = zip(study.similarities, study.similarity_weights, strict=True)
    return ", ".join(f"{name} {weight:.3g}" for name, weight in pairs)


def _tables(study: VoteStudy) -> Iterable[Table]:
    known = study.accuracy is not None
    rows: list[tuple[Cell, ...]] = []
    if study.accuracy is not None:
        rows.append(("vote", None, None, study.accuracy))
    accuracy = study.retriever_accuracy or (None,) * len(study.retrievers)
    for name, weight, wins, one in zip(
        study.retrievers, study.retriever_weights, study.wins, accuracy, strict=True
    ):
        rows.append((name, weight, wins, *((one,) if known else ())))
    if study.best_possible is not None:
        rows.append(("perfect vote", None, None, study.best_possible))
    yield Table(
        "summary",
        f"Votes by {study.pooling} of {weighted_similarities(study)}",
        (
            text("who", "who answers"),
            Column("weight", "weight"),
            Column("wins", "wins"),
            *((Column("accuracy", "accuracy"),) if known else ()),
        ),
        tuple(rows),
        note=""
        if study.tuned is None
        else f"Weights were searched on {study.tuned.num_questions} training questions, "
        f"where the winners' mean correctness is {study.tuned.correctness:.3f}.",
    )
    yield Table.of("agreement", "Agreement", [study], Column("agreement", "others alike to the winner"))
    yield comparison_table(study.comparisons or (), {})
    yield Table.of(
        "questions",
        "Each question",
        study.rows,
        text("query_id", "query"),
        Column("sample", "sample"),
        text("winner", "winner"),
        text("answer", "answer"),
        Column("score", "score"),
        Column("agreement", "agreement"),
        Column("correct", "correct"),
    )
