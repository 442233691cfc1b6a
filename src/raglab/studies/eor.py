"""The EoR study: an ensemble of retrievers over data sets and readers, learned on some questions of each and
tested on the others.

Source: ensemble-of-retrievers, tables 1 and 2, figures 1 to 6.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ragcore.arrays import BoolArray, FloatArray, IntArray
from ragcore.ensemble import Pooling, relative_win_ratio
from ragcore.ensemble.votes import POOLINGS
from ragcore.errors import InvalidInput
from ragcore.intervals import BootstrapInterval
from raglab.files.ensembles import Ensemble
from raglab.similarities.similarity import Similarity
from raglab.studies import inconsistency, vote
from raglab.studies.correctness import correctness
from raglab.studies.inconsistency import KIND_LABELS, KINDS, InconsistencyStudy, by_query
from raglab.studies.tables import Cell, Column, Table, text
from raglab.studies.uncertainty import Bootstrap, Comparison, compare
from raglab.studies.vote import VoteStudy, Voting, bootstrap_mean

EOR = "EoR"
"""Who the vote is in tables."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one reader answered to the questions of one data set, with every retriever."""

    dataset: str
    model: str
    train: Ensemble
    """Questions that weights are learned on."""
    test: Ensemble
    """Other questions, of the same retrievers."""
    unknown_contexts: tuple[str, ...] = ()
    """Retrievers of which it is not known what they found; their kinds of errors are not told apart."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A vote by one pooling function, with learned weights or with equal ones."""

    pooling: Pooling
    learned: bool
    train_accuracy: float
    accuracy: BootstrapInterval
    """On the test questions."""


@dataclass(frozen=True, slots=True)
class SettingFindings:
    """What one data set and reader showed."""

    dataset: str
    model: str
    num_train: int
    num_test: int
    vote: VoteStudy
    """The ensemble on the test questions, with the weights learned on the training questions."""
    train_accuracy: tuple[float, ...]
    """Of each retriever on the training questions."""
    variants: tuple[Variant, ...]
    retrievers: InconsistencyStudy
    """The retrievers on the test questions."""
    errors: InconsistencyStudy | None
    """Kinds of errors, over the retrievers whose contexts are known and the questions that all of these
    answered briefly; None where there are none."""
    exact_match: tuple[BootstrapInterval, ...]
    """Of each retriever, and of the ensemble, on the test questions; as the file says where it says so."""
    mrlr: BootstrapInterval
    """Mean relative lose ratio of the ensemble, over all retrievers."""
    best: int
    """The retriever that is right most often on the test questions, the paper's "top R": chosen with the very
    answers it is judged by."""
    chosen: int
    """The retriever that is right most often on the training questions, which one could have chosen."""
    comparisons: tuple[Comparison, ...]
    """The ensemble against either of them, on the test questions."""

    @property
    def accuracies(self) -> tuple[BootstrapInterval, ...]:
        """Of each retriever on the test questions."""
        return self.vote.retriever_accuracy or ()


@dataclass(frozen=True, slots=True)
class EorStudy:
    """What the study found."""

    judge: str
    longest_answer: int | None
    """Words of the longest answer of a question whose kinds of errors are told apart; None for any."""
    retriever_filter: float
    """Weight up to which a retriever's answer cannot win."""
    bootstrap: Bootstrap
    settings: tuple[SettingFindings, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """What to call each setting: by its data set, by its reader, or by both where several have either."""
        datasets = len({one.dataset for one in self.settings}) > 1
        models = len({one.model for one in self.settings}) > 1
        return tuple(
            ", ".join(
                part for part, told in ((one.dataset, datasets or not models), (one.model, models)) if told
            )
            for one in self.settings
        )

    def tables(self) -> tuple[Table, ...]:
        """Main results, comparisons, both splits, poolings, retrievers, upper bounds, errors, questions."""
        return tuple(table for table in _tables(self) if table.rows)


def measure(
    settings: Sequence[Setting],
    voting: Voting,
    *,
    judge: str = "exact_match",
    threshold: float = 0.5,
    longest_answer: int | None = 5,
    poolings: Sequence[Pooling] = POOLINGS,
    bootstrap: Bootstrap | None = None,
) -> EorStudy:
    """Learns weights for each setting, and tells what the ensemble wins with them.

    Args:
        settings: data sets and readers; each has its own weights.
        voting: how answers vote; its weights are not looked at.
        judge: how answers are held against references.
        threshold: correctness from which (inclusive) an answer is right, for judges with degrees.
        longest_answer: most words of an answer for its question to be looked at for kinds of errors, as
            whether passages hold a long one cannot be told (appendix B); None looks at all.
        poolings: poolings to compare, each with learned and with equal weights.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a question that cannot be judged.
        InvalidInput: no settings, a setting without questions of either split, or an option out of range.
    """
    if not settings:
        raise InvalidInput("settings", settings, "at least one")
    for one in settings:
        if not one.train.questions or not one.test.questions:
            raise InvalidInput(f"settings of {one.dataset}", "an empty split", "questions of both splits")
    chosen = bootstrap or Bootstrap()
    known = replace(voting, similarities=tuple(_Remembered(one) for one in voting.similarities))
    return EorStudy(
        judge,
        longest_answer,
        voting.retriever_filter,
        chosen,
        tuple(_measured(one, known, judge, threshold, longest_answer, poolings, chosen) for one in settings),
    )


class _Remembered:
    """A similarity that compares the same answers once, however many votes look at them."""

    def __init__(self, similarity: Similarity) -> None:
        self._similarity = similarity
        self._known: dict[tuple[str, tuple[str, ...]], FloatArray] = {}
        self.name, self.low, self.high = similarity.name, similarity.low, similarity.high
        self.pairs = similarity.pairs

    def matrix(self, answers: Sequence[str], *, question: str = "") -> FloatArray:
        """As the similarity's own."""
        key = (question, tuple(answers))
        if key not in self._known:
            self._known[key] = self._similarity.matrix(answers, question=question)
        return self._known[key]


def _measured(
    setting: Setting,
    voting: Voting,
    judge: str,
    threshold: float,
    longest_answer: int | None,
    poolings: Sequence[Pooling],
    bootstrap: Bootstrap,
) -> SettingFindings:
    train, test = setting.train, setting.test
    names = test.retrievers
    queries = [question.query_id for question in test.questions]
    train_accuracy = correctness(train, judge).mean(axis=0)
    correct = correctness(test, judge)
    voted = vote.measure(test, voting, judge=judge, training=train, bootstrap=bootstrap)
    winners = _winners(voted, names)
    won = by_query(queries, [row.correct for row in voted.rows])
    best, chosen = int(np.argmax(correct.mean(axis=0))), int(np.argmax(train_accuracy))
    comparisons = [
        compare(bootstrap, "accuracy", (EOR, won), (names[place], by_query(queries, correct[:, place])))
        for place in dict.fromkeys((best, chosen))
    ]
    exact = _with_vote(correctness(test, "exact_match"), winners)
    right: BoolArray = (_with_vote(correct, winners) >= threshold).T

    def mrlr(points: IntArray) -> float:
        return float(relative_win_ratio(right[:, points]).mrlr[-1])

    keys: Sequence[Hashable] = queries
    return SettingFindings(
        dataset=setting.dataset,
        model=setting.model,
        num_train=len(train.questions),
        num_test=len(test.questions),
        vote=voted,
        train_accuracy=tuple(train_accuracy.tolist()),
        variants=tuple(_variants(setting, voting, judge, poolings, voted, bootstrap)),
        retrievers=inconsistency.measure(test, judge=judge, threshold=threshold, bootstrap=bootstrap),
        errors=_errors(setting, judge, threshold, longest_answer, bootstrap),
        exact_match=tuple(
            bootstrap_mean(bootstrap, f"exact match {name}", queries, exact[:, place])
            for place, name in enumerate((*names, EOR))
        ),
        mrlr=bootstrap.statistic(f"mrlr {EOR}", keys, mrlr),
        best=best,
        chosen=chosen,
        comparisons=tuple(one for one in comparisons if one is not None),
    )


def _with_vote(correct: FloatArray, winners: Sequence[int]) -> FloatArray:
    """Correctness [N, M + 1] of each retriever and of the winners."""
    return np.column_stack([correct, correct[np.arange(len(winners)), winners]])


def _winners(voted: VoteStudy, names: tuple[str, ...]) -> list[int]:
    place = {name: at for at, name in enumerate(names)}
    return [place[row.winner] for row in voted.rows]


def _variants(
    setting: Setting,
    voting: Voting,
    judge: str,
    poolings: Sequence[Pooling],
    known: VoteStudy,
    bootstrap: Bootstrap,
) -> Iterable[Variant]:
    """Votes by each pooling; that of the study itself is not learned again."""
    queries = [question.query_id for question in setting.test.questions]
    for pooling in poolings:
        mine = replace(voting, pooling=pooling, similarity_weights=None, retriever_weights=None)
        for learned in (True, False):
            if learned:
                tuned = known.tuned if pooling == known.pooling else None
                tuned = tuned or vote.tune(setting.train, mine, judge=judge)
                weighed = replace(
                    mine,
                    similarity_weights=tuned.similarity_weights,
                    retriever_weights=tuned.retriever_weights,
                )
                on_train = tuned.correctness
            else:
                weighed = mine
                on_train = float(np.mean(vote.outcomes(setting.train, weighed, judge=judge)))
            values = vote.outcomes(setting.test, weighed, judge=judge)
            name = f"vote {pooling} {'learned' if learned else 'equal'}"
            yield Variant(pooling, learned, on_train, bootstrap_mean(bootstrap, name, queries, values))


def _errors(
    setting: Setting, judge: str, threshold: float, longest_answer: int | None, bootstrap: Bootstrap
) -> InconsistencyStudy | None:
    names = [name for name in setting.test.retrievers if name not in setting.unknown_contexts]
    if len(names) < 2:
        return None
    brief = setting.test.with_retrievers(names)
    if longest_answer is not None:
        brief = brief.with_questions(
            lambda one: all(len(answer.answer.split()) <= longest_answer for answer in one.answers)
        )
    if not brief.questions:
        return None
    found = inconsistency.measure(brief, judge=judge, threshold=threshold, bootstrap=bootstrap)
    return found if found.errors else None


def _tables(study: EorStudy) -> Iterable[Table]:
    both = (text("dataset", "data set"), text("model", "reader"))
    of = study.settings
    yield Table(
        "main",
        f"The ensemble against single retrievers, test questions, answers judged by {study.judge}",
        (
            *both,
            text("who", "retriever"),
            text("chosen", "which is"),
            Column("questions", "questions"),
            Column("accuracy", "accuracy"),
            Column("exact_match", "exact match"),
            Column("mrlr", "mean lose ratio"),
        ),
        tuple(row for one in of for row in _main(one)),
        note="Mean lose ratio: share of the questions it gets wrong that another retriever gets right, mean "
        "of all. The best on the test questions was chosen by the answers it is judged by.",
    )
    yield Table(
        "comparisons",
        "The ensemble minus a single retriever, on the same test questions",
        (
            *both,
            text("who", "retriever"),
            text("chosen", "which is"),
            Column("questions", "questions"),
            Column("difference", "EoR − retriever"),
            Column("p_value", "p, paired bootstrap"),
            Column("only_first", "only EoR right"),
            Column("only_second", "only retriever right"),
            Column("mcnemar_p", "p, McNemar"),
        ),
        tuple(row for one in of for row in _compared(one)),
        note="p-values are two-sided and of each comparison alone, not corrected for their number.",
    )
    yield Table(
        "splits",
        "Both splits",
        (*both, text("who", "retriever"), Column("train", "train"), Column("test", "test")),
        tuple(
            (one.dataset, one.model, who, train, test)
            for one in of
            for who, train, test in (
                *zip(one.vote.retrievers, one.train_accuracy, one.accuracies, strict=True),
                (EOR, None if one.vote.tuned is None else one.vote.tuned.correctness, one.vote.accuracy),
            )
        ),
        note=" ".join(
            f"{name}: {one.num_train} train, {one.num_test} test."
            for name, one in zip(study.names, of, strict=True)
        ),
    )
    yield Table(
        "poolings",
        "Votes by each pooling, with learned and with equal weights",
        (
            *both,
            text("pooling", "pooling"),
            text("weights", "weights"),
            Column("train", "train"),
            Column("test", "test"),
        ),
        tuple(
            (
                one.dataset,
                one.model,
                variant.pooling,
                "learned" if variant.learned else "equal",
                variant.train_accuracy,
                variant.accuracy,
            )
            for one in of
            for variant in one.variants
        ),
    )
    yield Table(
        "retrievers",
        "Each retriever, test questions",
        (
            *both,
            text("who", "retriever"),
            Column("accuracy", "accuracy"),
            Column("mrwr", "mean win ratio"),
            Column("mrlr", "mean lose ratio"),
            Column("weight", "learned weight"),
            Column("wins", "votes won"),
        ),
        tuple(
            (
                one.dataset,
                one.model,
                summary.retriever,
                summary.accuracy,
                summary.mrwr,
                summary.mrlr,
                weight,
                wins,
            )
            for one in of
            for summary, weight, wins in zip(
                one.retrievers.summaries, one.vote.retriever_weights, one.vote.wins, strict=True
            )
        ),
        note=" ".join(
            f"Similarities of {name}: {_similarities(one.vote)}."
            for name, one in zip(study.names, of, strict=True)
        ),
    )
    yield Table(
        "upper-bounds",
        "A vote that finds the right answer whenever one retriever has it",
        (
            *both,
            Column("retrievers", "retrievers"),
            Column("pools", "pools"),
            Column("mean", "mean"),
            Column("lowest", "lowest"),
            Column("highest", "highest"),
        ),
        tuple(
            (one.dataset, one.model, size, len(pools), float(pools.mean()), float(pools[0]), float(pools[-1]))
            for one in of
            if one.retrievers.upper_bounds is not None
            for size, pools in enumerate(one.retrievers.upper_bounds.by_size, start=1)
        ),
    )
    yield Table(
        "errors",
        "Kinds of errors, test questions",
        (
            *both,
            text("who", "retriever"),
            Column("questions", "questions"),
            *(Column(kind, KIND_LABELS[kind]) for kind in KINDS),
        ),
        tuple(
            (
                one.dataset,
                one.model,
                summary.retriever,
                len(one.errors.query_ids),
                *(summary.errors[kind] for kind in KINDS),
            )
            for one in of
            if one.errors is not None
            for summary in one.errors.summaries
        ),
        note=""
        if study.longest_answer is None
        else f"Over the questions to which every retriever led to an answer of at most "
        f"{study.longest_answer} words (appendix B).",
    )
    yield Table(
        "questions",
        "Each test question",
        (
            *both,
            text("query_id", "query"),
            text("winner", "winner"),
            text("answer", "answer"),
            Column("agreement", "agreement"),
            Column("correct", "correct"),
            Column("retrievers_right", "retrievers right"),
        ),
        tuple(
            (one.dataset, one.model, row.query_id, row.winner, row.answer, row.agreement, row.correct, right)
            for one in of
            for row, right in zip(one.vote.rows, one.retrievers.correct.sum(axis=0).tolist(), strict=True)
        ),
    )


def _main(one: SettingFindings) -> Iterable[tuple[Cell, ...]]:
    names = one.vote.retrievers
    places: dict[int, list[str]] = {}
    for place, why in ((one.best, "best on test"), (one.chosen, "best on train")):
        places.setdefault(place, []).append(why)
    if "ReFree" in names:
        places = {names.index("ReFree"): [], **places}
    for place, labels in places.items():
        yield (
            one.dataset,
            one.model,
            names[place],
            ", ".join(labels),
            one.num_test,
            one.accuracies[place],
            one.exact_match[place],
            one.retrievers.summaries[place].mrlr,
        )
    yield (one.dataset, one.model, EOR, "", one.num_test, one.vote.accuracy, one.exact_match[-1], one.mrlr)


def _compared(one: SettingFindings) -> Iterable[tuple[Cell, ...]]:
    names = one.vote.retrievers
    for comparison in one.comparisons:
        why = [
            label
            for place, label in ((one.best, "best on test"), (one.chosen, "best on train"))
            if names[place] == comparison.second
        ]
        test = comparison.mcnemar
        yield (
            one.dataset,
            one.model,
            comparison.second,
            ", ".join(why),
            comparison.difference.defined,
            comparison.difference,
            comparison.p_value,
            None if test is None else test.only_first,
            None if test is None else test.only_second,
            None if test is None else test.p_value,
        )


def _similarities(study: VoteStudy) -> str:
    return ", ".join(
        f"{name} {weight:.3g}"
        for name, weight in zip(study.similarities, study.similarity_weights, strict=True)
    )
