"""The answering study: how right answers are, how far up ranking brings what they need, and what it takes.

Source: Yu et al. 2024, §5: exact match, F1 and accuracy (tables 2 to 5), answer recall before and after
ranking (tables 6 and 8), time against exact match (figure 5), number of passages (figure 6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Final

import numpy as np

from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_core.text_metrics import exact_match, token_f1
from evenmesh_lab.files.answered import AnsweredRecord, TimesRecord
from evenmesh_lab.studies.choices import choice
from evenmesh_lab.studies.correctness import holds
from evenmesh_lab.studies.tables import Column, Table, means, measures, text
from evenmesh_lab.studies.uncertainty import UPWARD, Bootstrap, Comparison, adjusted, compare

ABSTENTION: Final = "not in the passages"
"""Answer of this project's models where the passages hold none."""

DEPTHS: Final = (5, 10, 20)
"""Depths of recall, as in the paper."""

MEASURES: Final[Mapping[str, str]] = MappingProxyType(
    {"exact_match": "EM", "token_f1": "F1", "accuracy": "accuracy"}
)
"""Measures of an answer and what they are called."""


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """One way to answer questions."""

    retriever: str
    reranker: str
    n: int
    """Passages retrieved and ranked."""
    k: int
    """Passages given to the model."""
    model: str


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """One question, answered one way; ``nan`` is undefined."""

    configuration: Configuration
    system: str
    dataset: str
    group: str
    query_id: str
    answer: str | None
    exact_match: float
    """Exact match of open questions, in {0, 1}."""
    token_f1: float
    """Token F1 of open questions, in [0, 1]."""
    accuracy: float
    """Of open questions whether the answer holds a reference, of multiple choice whether its letter is the
    right one; in {0, 1}."""
    abstained: bool
    answerable: bool
    unread: bool
    """Whether no option could be read from an answer to multiple choice."""
    recall_before: Mapping[int, float]
    """By depth: whether one of the first passages retrieved holds an answer, in {0, 1}."""
    recall_after: Mapping[int, float]
    """The same after ranking."""
    gold_before: Mapping[int, float]
    """By depth: share of the known gold passages among the first retrieved, in [0, 1]."""
    gold_after: Mapping[int, float]
    """The same after ranking."""
    retrieve_ms: float
    rerank_ms: float
    generate_ms: float

    @property
    def key(self) -> str:
        """The question, over all data sets."""
        return f"{self.dataset}\t{self.query_id}"


@dataclass(frozen=True, slots=True)
class AnswerSummary:
    """One system on one data set (or part of one)."""

    system: str
    dataset: str
    questions: int
    unanswered: int
    unread: int
    means: Mapping[str, BootstrapInterval]
    """By measure; those that are undefined throughout are missing."""
    abstained: float
    """Share of the answers."""


@dataclass(frozen=True, slots=True)
class RecallSummary:
    """Recall of one ranking on one data set."""

    kind: str
    """``answer`` or ``gold``."""
    system: str
    reranker: str
    dataset: str
    depth: int
    before: BootstrapInterval
    after: BootstrapInterval
    difference: BootstrapInterval
    p_value: float
    """Two-sided, of the paired bootstrap."""

    @property
    def gap_closed(self) -> float:
        """Share of what was missing to 1 that ranking wins; ``nan`` where nothing was."""
        missing = 1.0 - self.before.value
        return (self.after.value - self.before.value) / missing if missing > 0 else math.nan


@dataclass(frozen=True, slots=True)
class TimeSummary:
    """Times of one system for a question, over all data sets. Milliseconds."""

    system: str
    retrieve: BootstrapInterval
    rerank: BootstrapInterval
    generate: BootstrapInterval
    overhead: float
    """Mean of rerank + generate, over that of generating without a reranker what else is the same: the
    paper's figure 5. ``nan`` where no system does so."""


@dataclass(frozen=True, slots=True)
class Abstentions:
    """Abstentions of one system on a data set with unanswerable questions."""

    system: str
    dataset: str
    unanswerable: int
    abstained: int
    both: int
    precision: float
    """``nan`` where it never abstained."""
    recall: float


@dataclass(frozen=True, slots=True)
class AnsweringStudy:
    """Results of the study."""

    configurations: Mapping[str, Configuration]
    """By the name of the system."""
    datasets: tuple[str, ...]
    bootstrap: Bootstrap
    summaries: tuple[AnswerSummary, ...]
    groups: tuple[AnswerSummary, ...]
    """By part of a data set, for those that have parts; ``dataset`` is ``NAME/PART``."""
    recalls: tuple[RecallSummary, ...]
    times: tuple[TimeSummary, ...]
    comparisons: Mapping[str, tuple[Comparison, ...]]
    """By data set."""
    abstentions: tuple[Abstentions, ...]
    rows: tuple[AnswerRow, ...]

    def tables(self) -> tuple[Table, ...]:
        """Return answers, parts, recall, times, comparisons, abstentions, and each question, in order."""
        return tuple(table for table in _tables(self) if table.rows)


def measure(
    records: Sequence[AnsweredRecord],
    times: Sequence[TimesRecord] = (),
    *,
    abstention: str = ABSTENTION,
    bootstrap: Bootstrap | None = None,
) -> AnsweringStudy:
    """Measure answers.

    Args:
        records: answers; every system answers a question at most once.
        times: what they took, where that is known.
        abstention: what models say where the passages do not answer; compared without case and final stop.
        bootstrap: how intervals are computed.

    Raises:
        InvalidInput: no records, or a question answered twice by one system.
    """
    settings = bootstrap or Bootstrap()
    if not records:
        raise InvalidInput("records", records, "at least one")
    names = _names(dict.fromkeys(_configuration(record) for record in records))
    taken = {(_configuration(one), one.dataset, one.query_id): one for one in times}
    seen: set[tuple[Configuration, str, str]] = set()
    rows = []
    for record in records:
        key = (_configuration(record), record.dataset, record.query_id)
        if key in seen:
            raise InvalidInput("records", record.query_id, "every question once for each system")
        seen.add(key)
        rows.append(_row(record, names[key[0]], taken.get(key), abstention))
    by = {
        (system, dataset): [row for row in rows if row.system == system and row.dataset == dataset]
        for dataset in dict.fromkeys(row.dataset for row in rows)
        for system in names.values()
    }
    by = {key: mine for key, mine in by.items() if mine}
    return AnsweringStudy(
        configurations={name: configuration for configuration, name in names.items()},
        datasets=tuple(dict.fromkeys(row.dataset for row in rows)),
        bootstrap=settings,
        summaries=tuple(_summary(settings, *key, mine) for key, mine in by.items()),
        groups=tuple(_parts(settings, by)),
        recalls=tuple(_recalls(settings, by)),
        times=_times(settings, names, rows) if times else (),
        comparisons=_comparisons(settings, names, by),
        abstentions=tuple(_abstentions(by)),
        rows=tuple(rows),
    )


def is_abstention(answer: str, abstention: str = ABSTENTION) -> bool:
    """Return whether an answer is the abstention, whatever its case and final stop."""

    def plain(one: str) -> str:
        return " ".join(one.lower().split()).rstrip(".")

    return plain(answer) == plain(abstention)


def _configuration(record: AnsweredRecord | TimesRecord) -> Configuration:
    return Configuration(record.retriever, record.reranker, record.n, record.k, record.model)


def _names(configurations: Iterable[Configuration]) -> dict[Configuration, str]:
    """Return the names of systems: their ranking, and the settings in which they differ."""
    there = list(configurations)

    def several(of: Callable[[Configuration], object]) -> bool:
        return len({of(one) for one in there}) > 1

    return {
        one: ", ".join(
            [
                one.retriever if one.reranker == "none" else f"{one.retriever} + {one.reranker}",
                *([f"N = {one.n}"] if several(lambda each: each.n) else []),
                *([f"k = {one.k}"] if several(lambda each: each.k) else []),
                *([one.model] if several(lambda each: each.model) else []),
            ]
        )
        for one in there
    }


def _row(record: AnsweredRecord, system: str, taken: TimesRecord | None, abstention: str) -> AnswerRow:
    answer, references = record.answer, tuple(record.references)
    exact = f1 = right = math.nan
    unread = False
    if answer is not None and references:
        exact, f1 = exact_match(answer, references), token_f1(answer, references)
        right = float(any(holds(answer, one) for one in references))
    if answer is not None and record.options and record.right is not None:
        chosen = choice(answer, record.options)
        right, unread = float(chosen == record.right), chosen is None
    depths = [depth for depth in DEPTHS if depth <= record.n]
    open_ = bool(references)
    return AnswerRow(
        configuration=_configuration(record),
        system=system,
        dataset=record.dataset,
        group=record.group,
        query_id=record.query_id,
        answer=answer,
        exact_match=exact,
        token_f1=f1,
        accuracy=right,
        abstained=answer is not None and is_abstention(answer, abstention),
        answerable=record.answerable,
        unread=unread,
        recall_before={depth: _first(record.first_before, depth) for depth in depths if open_},
        recall_after={depth: _first(record.first_after, depth) for depth in depths if open_},
        gold_before={depth: _share(record.gold_before, record.gold, depth) for depth in depths},
        gold_after={depth: _share(record.gold_after, record.gold, depth) for depth in depths},
        retrieve_ms=_known(taken.retrieve_ms if taken else None),
        rerank_ms=_known(taken.rerank_ms if taken else None),
        generate_ms=_known(taken.generate_ms if taken else None),
    )


def _first(rank: int | None, depth: int) -> float:
    return float(rank is not None and rank <= depth)


def _share(ranks: Sequence[int], gold: int, depth: int) -> float:
    return sum(rank <= depth for rank in ranks) / gold if gold else math.nan


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _summary(settings: Bootstrap, system: str, dataset: str, rows: Sequence[AnswerRow]) -> AnswerSummary:
    estimates = {}
    # Systems share their random numbers, so equal values have equal intervals.
    for measure_name in MEASURES:
        values = [getattr(row, measure_name) for row in rows]
        if not all(math.isnan(value) for value in values):
            estimates[measure_name] = settings.share(f"{measure_name} {dataset}", values)
    answers = [row for row in rows if row.answer is not None]
    return AnswerSummary(
        system=system,
        dataset=dataset,
        questions=len(rows),
        unanswered=len(rows) - len(answers),
        unread=sum(row.unread for row in rows),
        means=estimates,
        abstained=sum(row.abstained for row in answers) / len(answers) if answers else math.nan,
    )


def _parts(settings: Bootstrap, by: Mapping[tuple[str, str], Sequence[AnswerRow]]) -> Iterable[AnswerSummary]:
    for (system, dataset), rows in by.items():
        groups = dict.fromkeys(row.group for row in rows if row.group)
        if len(groups) < 2:
            continue
        for group in groups:
            mine = [row for row in rows if row.group == group]
            yield _summary(settings, system, f"{dataset}/{group}", mine)


def _recalls(
    settings: Bootstrap, by: Mapping[tuple[str, str], Sequence[AnswerRow]]
) -> Iterable[RecallSummary]:
    """Yield one summary for each ranking, which models and numbers of passages share."""
    done: set[tuple[str, ...]] = set()
    names = _names(
        dict.fromkeys(
            Configuration(one.retriever, one.reranker, one.n, 0, "")
            for rows in by.values()
            for one in (rows[0].configuration,)
        )
    )
    for (_, dataset), rows in by.items():
        one = rows[0].configuration
        ranking = names[Configuration(one.retriever, one.reranker, one.n, 0, "")]
        if (ranking, dataset) in done:
            continue
        done.add((ranking, dataset))
        for kind, before, after in (
            ("answer", "recall_before", "recall_after"),
            ("gold", "gold_before", "gold_after"),
        ):
            for depth in DEPTHS:
                earlier = np.array([getattr(row, before).get(depth, math.nan) for row in rows])
                later = np.array([getattr(row, after).get(depth, math.nan) for row in rows])
                if np.isnan(earlier).all():
                    continue
                what = f"{kind} recall@{depth} {dataset}"
                paired = settings.paired(what, later, earlier)
                yield RecallSummary(
                    kind=kind,
                    system=ranking,
                    reranker=one.reranker,
                    dataset=dataset,
                    depth=depth,
                    before=settings.share(what, earlier),
                    after=settings.share(what, later),
                    difference=paired.difference,
                    p_value=paired.p_value,
                )


def _times(
    settings: Bootstrap, names: Mapping[Configuration, str], rows: Sequence[AnswerRow]
) -> tuple[TimeSummary, ...]:
    stages = ("retrieve", "rerank", "generate")
    taken = {
        one: {
            stage: settings.mean(
                f"{stage} {name}",
                [getattr(row, f"{stage}_ms") for row in rows if row.system == name],
                within=UPWARD,
            )
            for stage in stages
        }
        for one, name in names.items()
    }
    alone = {
        (one.retriever, one.k, one.model): mine["generate"].value
        for one, mine in taken.items()
        if one.reranker == "none"
    }
    return tuple(
        TimeSummary(
            system=names[one],
            **mine,
            overhead=(mine["rerank"].value + mine["generate"].value)
            / alone.get((one.retriever, one.k, one.model), math.nan),
        )
        for one, mine in taken.items()
    )


def _comparisons(
    settings: Bootstrap,
    names: Mapping[Configuration, str],
    by: Mapping[tuple[str, str], Sequence[AnswerRow]],
) -> Mapping[str, tuple[Comparison, ...]]:
    """Compare systems that differ in one setting."""
    found: dict[str, tuple[Comparison, ...]] = {}
    pairs = [
        (one, other)
        for one, other in combinations(names, 2)
        if sum(mine != theirs for mine, theirs in zip(astuple(one), astuple(other), strict=True)) == 1
    ]
    for dataset in dict.fromkeys(dataset for _, dataset in by):
        mine = []
        for one, other in pairs:
            first, second = by.get((names[one], dataset)), by.get((names[other], dataset))
            if first is None or second is None:
                continue
            for name in MEASURES:
                compared = compare(
                    settings,
                    name,
                    (names[one], {row.key: getattr(row, name) for row in first}),
                    (names[other], {row.key: getattr(row, name) for row in second}),
                )
                if compared is not None:
                    mine.append(compared)
        found[dataset] = adjusted(mine)
    return found


def _abstentions(by: Mapping[tuple[str, str], Sequence[AnswerRow]]) -> Iterable[Abstentions]:
    for (system, dataset), rows in by.items():
        answers = [row for row in rows if row.answer is not None]
        unanswerable = sum(not row.answerable for row in answers)
        if not unanswerable:
            continue
        abstained = sum(row.abstained for row in answers)
        both = sum(row.abstained and not row.answerable for row in answers)
        yield Abstentions(
            system,
            dataset,
            unanswerable,
            abstained,
            both,
            both / abstained if abstained else math.nan,
            both / unanswerable,
        )


def _tables(study: AnsweringStudy) -> Iterable[Table]:
    yield _answers("summary", "Answers", study.summaries)
    yield _answers("parts", "Answers, by part of the data set", study.groups)
    for kind, title, note in (
        (
            "answer",
            "Answer recall before and after ranking",
            "Whether one of the first passages holds a right answer; of open questions.",
        ),
        (
            "gold",
            "Recall of gold passages before and after ranking",
            "Share of the passages known to hold the answer.",
        ),
    ):
        mine = [one for one in study.recalls if one.kind == kind]
        ranked = [one for one in mine if one.reranker != "none"]
        # Without any reranker the table has what was retrieved, and nothing to compare it with.
        later = None if ranked else (lambda _: None)
        yield Table.of(
            f"{kind}-recall",
            title,
            ranked or mine,
            text("dataset", "data set"),
            text("ranking", "ranking", ("system",)),
            Column("depth", "at"),
            Column("before", "before"),
            Column("after", "after", later),
            Column("difference", "after − before", later),
            Column("gap_closed", "of the gap to 1", later),
            Column("p_value", "p, paired", later),
            note=note,
        )
    yield Table.of(
        "times",
        "Time for a question, milliseconds",
        study.times,
        text("system", "system"),
        Column("retrieve_ms", "retrieve", ("retrieve",)),
        Column("rerank_ms", "rerank", ("rerank",)),
        Column("generate_ms", "generate", ("generate",)),
        Column("overhead", "of generation alone"),
        note="Wall time of each stage as the mesh reports it, with other questions in flight. A model that "
        "caches encodings reads passages faster that it was shown with the same question before. Of "
        "generation alone: (rerank + generate) over generate of the same without a reranker.",
    )
    yield Table.of(
        "comparisons",
        "Systems on the same questions",
        [(dataset, one) for dataset, mine in study.comparisons.items() for one in mine],
        text("dataset", "data set", lambda row: row[0]),
        text("measure", "measure", lambda row: MEASURES[row[1].measure]),
        text("first", "first", lambda row: row[1].first),
        text("second", "second", lambda row: row[1].second),
        Column("questions", "questions", lambda row: row[1].difference.defined),
        Column("difference", "first − second", lambda row: row[1].difference),
        Column("p_value", "p, paired", lambda row: row[1].p_value),
        Column("mcnemar_p", "p, McNemar", lambda row: row[1].mcnemar and row[1].mcnemar.p_value),
        note="Systems that differ in one thing. p-values are two-sided and of each comparison alone, not "
        "corrected for their number.",
    )
    yield Table.of(
        "abstentions",
        "Abstentions",
        study.abstentions,
        text("dataset", "data set"),
        text("system", "system"),
        Column("unanswerable", "unanswerable"),
        Column("abstained", "abstained"),
        Column("both", "rightly"),
        Column("precision", "precision"),
        Column("recall", "recall"),
    )
    yield Table.of(
        "questions",
        "Each question",
        study.rows,
        text("dataset", "data set"),
        text("query_id", "query"),
        text("system", "system"),
        text("answer", "answer"),
        *measures(MEASURES),
    )


def _answers(name: str, title: str, summaries: Sequence[AnswerSummary]) -> Table:
    known = {key: label for key, label in MEASURES.items() if any(key in one.means for one in summaries)}
    unread = [Column("unread", "no option read")] if any(one.unread for one in summaries) else []
    return Table.of(
        name,
        title,
        summaries,
        text("dataset", "data set"),
        text("system", "system"),
        Column("questions", "questions"),
        *means(known),
        Column("abstained", "abstained"),
        Column("unanswered", "unanswered"),
        *unread,
        note="Accuracy: the answer holds a reference; of multiple choice: its option is the right one. What "
        "is unanswered is left out of the means.",
    )
