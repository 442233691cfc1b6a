"""The EoR study: an ensemble of retrievers over data sets and readers, learned on some questions of each and
tested on the others.

Source: Li et al. 2024, tables 1 and 2, figures 1 to 6.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evenmesh_core.arrays import BoolArray, FloatArray, IntArray
from evenmesh_core.ensemble import Pooling, relative_win_ratio
from evenmesh_core.ensemble.votes import POOLINGS
from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.files.ensembles import Ensemble
from evenmesh_lab.similarities.similarity import Check, Similarity, unchecked
from evenmesh_lab.studies import inconsistency, vote
from evenmesh_lab.studies.correctness import Judging, correctness, name_of
from evenmesh_lab.studies.inconsistency import (
    KIND_LABELS,
    KINDS,
    POOLS,
    InconsistencyStudy,
    pools,
)
from evenmesh_lab.studies.tables import Cell, Column, Table, text
from evenmesh_lab.studies.uncertainty import (
    COMPARISON_NOTE,
    Bootstrap,
    Comparison,
    adjusted,
    bootstrap_share,
    by_query,
    compare,
)
from evenmesh_lab.studies.vote import VoteStudy, Voting, weighted_similarities

EOR = "EoR"
"""Name of the vote in tables."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Answers of one reader to the questions of one data set, with every retriever."""

    dataset: str
    model: str
    train: Ensemble
    """Questions that weights are learned on."""
    test: Ensemble
    """Other questions, of the same retrievers."""
    unknown_contexts: tuple[str, ...] = ()
    """Retrievers whose contexts are unknown; their kinds of errors are not distinguished."""


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
    """Results of one data set and reader."""

    dataset: str
    model: str
    num_train: int
    num_test: int
    vote: VoteStudy
    """The ensemble on the test questions, with the weights learned on the training questions."""
    train_accuracy: tuple[float, ...]
    """Accuracy of each retriever on the training questions."""
    variants: tuple[Variant, ...]
    retrievers: InconsistencyStudy
    """The retrievers on the test questions."""
    errors: InconsistencyStudy | None
    """Kinds of errors, over the retrievers whose contexts are known and the questions that all of these
    answered briefly; None where there are none."""
    exact_match: tuple[BootstrapInterval, ...]
    """Exact match of each retriever and of the ensemble on the test questions, or the file's correctness."""
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
        """Accuracy of each retriever on the test questions."""
        return self.vote.retriever_accuracy or ()


@dataclass(frozen=True, slots=True)
class EorStudy:
    """Results of the study."""

    judge: str
    longest_answer: int | None
    """Most words of answers to questions whose kinds of errors are distinguished; None for any."""
    retriever_filter: float
    """Weight up to which a retriever's answer cannot win."""
    bootstrap: Bootstrap
    settings: tuple[SettingFindings, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Name of each setting: its data set, its reader, or both if both vary."""
        datasets = len({one.dataset for one in self.settings}) > 1
        models = len({one.model for one in self.settings}) > 1
        return tuple(
            ", ".join(
                part for part, named in ((one.dataset, datasets or not models), (one.model, models)) if named
            )
            for one in self.settings
        )

    def tables(self) -> tuple[Table, ...]:
        """Return results, comparisons, both splits, poolings, retrievers, upper bounds, errors, questions."""
        return tuple(table for table in _tables(self) if table.rows)


def measure(
    settings: Sequence[Setting],
    voting: Voting,
    *,
    judge: Judging = "exact_match",
    threshold: float = 0.5,
    longest_answer: int | None = 5,
    poolings: Sequence[Pooling] = POOLINGS,
    bootstrap: Bootstrap | None = None,
) -> EorStudy:
    """Learn weights for each setting, and measure the ensemble with them.

    Args:
        settings: data sets and readers; each has its own weights.
        voting: how answers vote; its weights are ignored.
        judge: how answers are compared with references.
        threshold: correctness from which (inclusive) an answer is right, for judges with degrees.
        longest_answer: most words of answers to a question whose kinds of errors are distinguished, as
            passages rarely hold long answers literally (appendix B); None takes all.
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
    known = cached(voting)
    return EorStudy(
        name_of(judge),
        longest_answer,
        voting.retriever_filter,
        chosen,
        tuple(_measured(one, known, judge, threshold, longest_answer, poolings, chosen) for one in settings),
    )


def cached(voting: Voting) -> Voting:
    """Return a vote that compares the same answers once, in however many measurements it is used."""
    return replace(
        voting,
        similarities=tuple(
            one if isinstance(one, _CachedSimilarity) else _CachedSimilarity(one)
            for one in voting.similarities
        ),
    )


class _CachedSimilarity(Similarity):
    """A similarity that compares the same answers once, however many votes read them."""

    def __init__(self, similarity: Similarity) -> None:
        self._similarity = similarity
        self._cache: dict[tuple[str, tuple[str, ...]], FloatArray] = {}
        self.name, self.low, self.high = similarity.name, similarity.low, similarity.high
        self.reads_question = similarity.reads_question

    def judge(
        self, texts: Sequence[str], left: IntArray, right: IntArray, question: str, check: Check
    ) -> FloatArray:
        """Compare pairs, as the similarity does."""
        return self._similarity.judge(texts, left, right, question, check)

    def matrix(self, answers: Sequence[str], *, question: str = "", check: Check = unchecked) -> FloatArray:
        """Compare each answer with each, as the similarity does."""
        key = (question, tuple(answers))
        if key not in self._cache:
            self._cache[key] = self._similarity.matrix(answers, question=question, check=check)
        return self._cache[key]


def _measured(
    setting: Setting,
    voting: Voting,
    judge: Judging,
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
            bootstrap_share(bootstrap, f"exact match {name}", queries, exact[:, place])
            for place, name in enumerate((*names, EOR))
        ),
        mrlr=bootstrap.ratio(f"mrlr {EOR}", keys, mrlr, counted=int((~right[-1]).sum())),
        best=best,
        chosen=chosen,
        comparisons=adjusted([one for one in comparisons if one is not None]),
    )


def _with_vote(correct: FloatArray, winners: Sequence[int]) -> FloatArray:
    """Return the correctness [N, M + 1] of each retriever and of the winners."""
    return np.column_stack([correct, correct[np.arange(len(winners)), winners]])


def _winners(voted: VoteStudy, names: tuple[str, ...]) -> list[int]:
    place = {name: at for at, name in enumerate(names)}
    return [place[row.winner] for row in voted.rows]


def _variants(
    setting: Setting,
    voting: Voting,
    judge: Judging,
    poolings: Sequence[Pooling],
    known: VoteStudy,
    bootstrap: Bootstrap,
) -> Iterable[Variant]:
    """Measure votes by each pooling; that of the study itself is not learned again."""
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
            yield Variant(pooling, learned, on_train, bootstrap_share(bootstrap, name, queries, values))


def _errors(
    setting: Setting, judge: Judging, threshold: float, longest_answer: int | None, bootstrap: Bootstrap
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
    named = list(zip(study.names, of, strict=True))
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
            Column("p_value", "p, paired"),
            Column("only_first", "only EoR right"),
            Column("only_second", "only retriever right"),
            Column("mcnemar_p", "p, McNemar"),
            Column("p_holm", "p, Holm"),
        ),
        _all_compared(of),
        note=f"{COMPARISON_NOTE} All comparisons of this table are one family.",
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
        note=" ".join(f"{name}: {one.num_train} train, {one.num_test} test." for name, one in named),
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
            (one.dataset, one.model, each.retriever, each.accuracy, each.mrwr, each.mrlr, weight, wins)
            for one in of
            for each, weight, wins in zip(
                one.retrievers.summaries, one.vote.retriever_weights, one.vote.wins, strict=True
            )
        ),
        note=" ".join(f"Similarities of {name}: {weighted_similarities(one.vote)}." for name, one in named),
    )
    yield Table(
        "upper-bounds",
        "A vote that finds the right answer whenever one retriever has it",
        (*both, *POOLS),
        tuple(
            (one.dataset, one.model, *row)
            for one in of
            if one.retrievers.upper_bounds is not None
            for row in pools(one.retrievers.upper_bounds)
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
                each.retriever,
                len(one.errors.query_ids),
                *(each.errors[kind] for kind in KINDS),
            )
            for one in of
            if one.errors is not None
            for each in one.errors.summaries
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


def _chosen(one: SettingFindings) -> dict[int, str]:
    """Return the retrievers that are the best of a split, by index, with the reason."""
    places: dict[int, list[str]] = {}
    for place, why in ((one.best, "best on test"), (one.chosen, "best on train")):
        places.setdefault(place, []).append(why)
    return {place: ", ".join(reasons) for place, reasons in places.items()}


def _main(one: SettingFindings) -> Iterable[tuple[Cell, ...]]:
    names, places = one.vote.retrievers, _chosen(one)
    if "ReFree" in names:
        places = {names.index("ReFree"): "", **places}
    for place, why in places.items():
        yield (
            one.dataset,
            one.model,
            names[place],
            why,
            one.num_test,
            one.accuracies[place],
            one.exact_match[place],
            one.retrievers.summaries[place].mrlr,
        )
    yield (one.dataset, one.model, EOR, "", one.num_test, one.vote.accuracy, one.exact_match[-1], one.mrlr)


def _all_compared(of: Sequence[SettingFindings]) -> tuple[tuple[Cell, ...], ...]:
    # Adjusted over the whole table: the family is larger than the one of a setting.
    family = iter(adjusted([comparison for one in of for comparison in one.comparisons]))
    return tuple((*row, next(family).p_holm) for one in of for row in _compared(one))


def _compared(one: SettingFindings) -> Iterable[tuple[Cell, ...]]:
    reasons = {one.vote.retrievers[place]: why for place, why in _chosen(one).items()}
    for comparison in one.comparisons:
        test = comparison.mcnemar
        yield (
            one.dataset,
            one.model,
            comparison.second,
            reasons[comparison.second],
            comparison.difference.defined,
            comparison.difference,
            comparison.p_value,
            None if test is None else test.only_first,
            None if test is None else test.only_second,
            None if test is None else test.p_value,
        )
