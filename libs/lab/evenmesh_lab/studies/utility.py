"""The utility study: how good the answers of an audit are, and what fairness costs.

Source: Kim & Diaz 2025, §3.1, §3.3.2, §3.3.3, §5, appendices B and C.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray, count
from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_core.sparse_means import LEAST_DIFFERING, sparse_interval
from evenmesh_core.text_metrics import (
    LAMP_METRICS,
    accuracy,
    exact_match,
    lamp_utility,
    rating,
    rouge,
    token_f1,
)
from evenmesh_core.utility import (
    FairnessIntervals,
    expected_utility,
    fairness_intervals,
    maximum_utility,
    normalized_expected_utility,
)
from evenmesh_lab.files.audits import QueryAudit, Sampling
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.labels import Labels
from evenmesh_lab.studies.curves import Curve, CurveArea, areas_of, curves_of
from evenmesh_lab.studies.exposure import (
    area_table,
    compare_systems,
    comparison_table,
    curve_table,
    judgements,
    longest_ranking,
    means_of,
    metrics_of,
    universe,
)
from evenmesh_lab.studies.tables import SYSTEM, Column, Table, by_configuration, means, measures, text
from evenmesh_lab.studies.uncertainty import Bootstrap, Comparison

AnswerMetric = Callable[[str, tuple[str, ...]], float]
"""Scores an answer against its references: a utility from 0, higher is better."""


def _lamp(task: str) -> AnswerMetric:
    def best(answer: str, references: tuple[str, ...]) -> float:
        return max(lamp_utility(task, answer, reference) for reference in references)

    return best


METRICS: Mapping[str, AnswerMetric] = MappingProxyType(
    {
        "token_f1": token_f1,
        "exact_match": exact_match,
        "accuracy": accuracy,
        "rouge1": lambda answer, references: rouge(answer, references, "rouge1"),
        "rouge2": lambda answer, references: rouge(answer, references, "rouge2"),
        "rating": rating,
        "rougeL": lambda answer, references: rouge(answer, references, "rougeL"),
        **{task: _lamp(task) for task in LAMP_METRICS},
    }
)
"""Metrics of answers by name."""

LABELS: Mapping[str, str] = {
    "eu": "EU",
    "eu_norm": "EU, of its maximum",
    "ee_d_norm": "EE-D, of its bound",
    "ee_r_norm": "EE-R, of its bound",
}


_CURVES: Final = (
    ("disparity-utility", "ee_d_norm", "eu_norm"),
    ("quality-utility", "ee_r_norm", "eu_norm"),
    ("disparity-quality", "ee_d_norm", "ee_r_norm"),
)
"""Name of each curve, and the measures it is over."""


_DEFAULT: Final = "token_f1"
RECORDED: Final = "as recorded"
"""How answers are scored that come with a utility."""


@dataclass(frozen=True, slots=True)
class UtilityRow:
    """One query under one system and α."""

    query_id: str
    system: str
    alpha: float | None
    num_rankings: int
    num_unanswered: int
    """Rankings without answer and utility; they are left out of the expectation."""
    eu: float
    """Expected utility; ``nan`` where no ranking has one."""
    u_max: float
    """Largest utility of any ranking of the query, whatever system and α; ``nan`` where none has one."""
    eu_norm: float
    """Expected over largest utility; ``nan`` where that is 0."""
    ee_d_norm: float
    ee_r_norm: float
    """``nan`` without labels, or without useful passages."""


@dataclass(frozen=True, slots=True)
class UtilitySummary:
    """One system at one α: means over queries."""

    system: str
    alpha: float | None
    num_queries: int
    num_unanswered: int
    means: Mapping[str, BootstrapInterval]
    """By the name of the measure."""


@dataclass(frozen=True, slots=True)
class SystemFairness:
    """Normalised utility of one system at five levels of fairness, relative to the deterministic ranking."""

    system: str
    baseline_system: str
    baseline: float
    """Mean normalised expected utility of the deterministic ranking."""
    intervals: FairnessIntervals
    differences: tuple[BootstrapInterval, ...]
    """Its five values with their intervals over queries."""
    paired: FairnessIntervals
    """Likewise, minus the deterministic ranking of each point's own query."""
    paired_differences: tuple[BootstrapInterval, ...]
    """Its five values with their intervals over queries; ``undefined`` counts nothing."""


@dataclass(frozen=True, slots=True)
class UtilityStudy:
    """Results of the study."""

    k: int
    longest: int
    """Length of the longest ranking; where it is below ``k``, no ranking can reach the bound of EE-D."""
    metric: str
    weighted: bool
    bootstrap: Bootstrap
    rows: tuple[UtilityRow, ...]
    summaries: tuple[UtilitySummary, ...]
    curves: tuple[Curve, ...]
    """Disparity against utility, and with labels quality against utility and disparity against quality."""
    areas: tuple[CurveArea, ...]
    """Areas under the curves over the range that all systems cover."""
    fairness: tuple[SystemFairness, ...]
    """For each system that has sampled rankings; empty where no rankings are deterministic (without α)."""
    comparisons: tuple[Comparison, ...]
    """The first system against each other, at the same α."""

    def tables(self) -> tuple[Table, ...]:
        """Return summary, levels of fairness, curves, comparisons, and the rows of each query, in order."""
        return tuple(table for table in _tables(self) if table.rows)


def measure(
    queries: Iterable[QueryAudit],
    labels: Labels | None = None,
    *,
    k: int,
    metric: str | None = None,
    weighted: bool = False,
    min_grade: float = 1.0,
    graded: bool = False,
    baseline: str | None = None,
    bootstrap: Bootstrap | None = None,
) -> UtilityStudy:
    """Measure the utility of an audit's answers, one query at a time in memory.

    Args:
        queries: as :func:`evenmesh_lab.files.read_audits` gives them.
        labels: which passages are useful, for the quality of rankings; None leaves that out.
        k: number of passages the generator is given, from 1.
        metric: how answers are scored, a name of :data:`METRICS`; None keeps the ``utility`` that answers
            come with, and scores others by ``token_f1``.
        weighted: whether rankings count by their probability: exact where each ranking is listed once, and
            refused for samples, which come as often as they are probable.
        min_grade: grade from which a passage is useful, above 0.
        graded: whether higher grades deserve to be shown first.
        baseline: the system whose deterministic rankings are the reference; None takes each system's
            own.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a file's record is at fault: no query has a utility, an answer has no references, a ranking
            no probability or is a sample that shall be weighted, or the labels do not know its query.
        InvalidInput: an argument out of range.
    """
    depth = count("k", k)
    if metric is not None and metric not in METRICS:
        raise InvalidInput("metric", metric, ", ".join(METRICS))
    scoring = _Scoring(metric)
    settings = bootstrap or Bootstrap()
    rows: list[UtilityRow] = []
    longest = 0
    for query in queries:
        longest = max(longest, longest_ranking(query))
        judged = judgements(query, labels, min_grade, graded)
        items = {
            system: universe(query, system, judged)
            for system in dict.fromkeys(one.system for one in query.samplings)
        }
        utilities = [scoring.utilities(query, sampling) for sampling in query.samplings]
        known = [[value for value in values if value is not None] for values in utilities]
        u_max = maximum_utility([values for values in known if values]) if any(known) else float("nan")
        for sampling, values in zip(query.samplings, utilities, strict=True):
            weights = _weights(query, sampling) if weighted else None
            exposed = metrics_of(sampling, *items[sampling.system], depth, weights=weights)
            eu = _expected(values, weights)
            rows.append(
                UtilityRow(
                    query_id=query.query_id,
                    system=sampling.system,
                    alpha=sampling.alpha,
                    num_rankings=len(sampling.rankings),
                    num_unanswered=values.count(None),
                    eu=eu,
                    u_max=u_max,
                    eu_norm=float("nan") if np.isnan(eu) else float(normalized_expected_utility(eu, u_max)),
                    ee_d_norm=exposed.ee_d_norm,
                    ee_r_norm=exposed.ee_r_norm,
                )
            )
    return study_of(
        rows,
        k=depth,
        longest=longest,
        metric=scoring.name,
        weighted=weighted,
        baseline=baseline,
        bootstrap=settings,
    )


def study_of(
    rows: Sequence[UtilityRow],
    *,
    k: int,
    longest: int,
    metric: str = "token_f1",
    weighted: bool = False,
    baseline: str | None = None,
    bootstrap: Bootstrap | None = None,
) -> UtilityStudy:
    """Return the study of rows that were measured before.

    Args:
        rows: one for each query, system and α.
        k: as :func:`measure`.
        longest: length of the longest ranking, from 1.
        metric: how answers were scored, for the titles of tables.
        weighted: as :func:`measure`, likewise.
        baseline: as :func:`measure`.
        bootstrap: as :func:`measure`.

    Raises:
        InvalidInput: the baseline is no system of the rows.
    """
    settings = bootstrap or Bootstrap()
    order = by_configuration([(row.system, row.alpha) for row in rows])
    systems = list(dict.fromkeys(system for system, _ in order))
    if baseline is not None and baseline not in systems:
        raise InvalidInput("baseline", baseline, ", ".join(systems))
    return UtilityStudy(
        k=k,
        longest=longest,
        metric=metric,
        weighted=weighted,
        bootstrap=settings,
        rows=tuple(rows),
        summaries=tuple(_summary(key, rows, settings) for key in order),
        curves=curves_of(rows, _CURVES, settings),
        areas=areas_of(rows, _CURVES, settings),
        fairness=tuple(_fairness(rows, systems, baseline, settings)),
        comparisons=compare_systems(rows, ("eu",), settings),
    )


class _Scoring:
    """Scores the answers of an audit.

    Args:
        metric: as :func:`measure`.
    """

    def __init__(self, metric: str | None) -> None:
        self._asked = metric
        self._metric: AnswerMetric = METRICS[metric or _DEFAULT]
        self._recorded = self._scored = False

    @property
    def name(self) -> str:
        """Return how the answers so far were scored."""
        by = self._asked or _DEFAULT
        if not self._recorded:
            return by
        return f"{RECORDED}, others by {by}" if self._scored else RECORDED

    def utilities(self, query: QueryAudit, sampling: Sampling) -> list[float | None]:
        """Return the utility of each answer; None where there is none."""
        known: dict[str, float] = {}  # samples often agree, and some metrics are slow
        values: list[float | None] = []
        for answer, utility in zip(sampling.answers, sampling.utilities, strict=True):
            if answer is not None and (utility is None or self._asked is not None):
                if answer not in known:
                    known[answer] = self._metric(answer, self._references(query, utility))
                utility = known[answer]
                self._scored = True
            elif utility is not None:
                self._recorded = True
            values.append(utility)
        return values

    def _references(self, query: QueryAudit, utility: float | None) -> tuple[str, ...]:
        if query.references:
            return query.references
        lacks = "neither utilities nor references" if utility is None else "no references"
        keep = "" if utility is None else f": leave out the metric {self._asked} to keep their utilities"
        raise FileError(
            query.path, query.line, f"begins query {query.query_id!r}, whose answers have {lacks}{keep}"
        )


def _weights(query: QueryAudit, sampling: Sampling) -> FloatArray:
    """Return the probabilities of a sampling's rankings, brought to the sum 1."""
    rankings = sampling.rankings
    if len(rankings) == 1:
        return np.ones(1)
    if sampling.numbered or len(set(rankings)) < len(rankings):
        raise FileError(
            query.path,
            query.line,
            f"begins query {query.query_id!r}, whose rankings are samples: they come as often as they are "
            "probable, and count equally; only rankings that are listed once each can be weighted",
        )
    logs = [log for log in sampling.log_probabilities if log is not None]
    if len(logs) < len(rankings):
        raise FileError(
            query.path,
            query.line,
            f"begins query {query.query_id!r}, where a ranking has no log_probability to weigh it by",
        )
    # Relative to the likeliest, so that the probabilities of long rankings do not vanish.
    shares = np.exp(np.array(logs) - max(logs))
    weights: FloatArray = shares / shares.sum()
    return weights


def _expected(values: list[float | None], weights: FloatArray | None) -> float:
    answered = [(place, value) for place, value in enumerate(values) if value is not None]
    if not answered:
        return float("nan")
    utilities = [value for _, value in answered]
    if weights is None:
        return expected_utility(utilities)
    probable = weights[[place for place, _ in answered]]
    return expected_utility(utilities, probable) if probable.sum() > 0 else float("nan")


def _summary(
    key: tuple[str, float | None], rows: Sequence[UtilityRow], bootstrap: Bootstrap
) -> UtilitySummary:
    mine = [row for row in rows if (row.system, row.alpha) == key]
    # LaMP-3's utilities reach 4, and those of a file any number: such a mean is no share.
    largest = max((row.u_max for row in rows if not np.isnan(row.u_max)), default=0.0)
    outcomes = ("eu_norm",) if largest > 1 else ("eu", "eu_norm")
    means = means_of(key, mine, LABELS, bootstrap, outcomes=outcomes)
    return UtilitySummary(*key, len(mine), sum(row.num_unanswered for row in mine), means)


def _fairness(
    rows: Sequence[UtilityRow], systems: list[str], baseline: str | None, bootstrap: Bootstrap
) -> Iterable[SystemFairness]:
    for system in systems:
        against = baseline or system
        level = [
            row.eu_norm
            for row in rows
            if row.system == against and row.alpha is None and not np.isnan(row.eu_norm)
        ]
        sampled = [row for row in rows if row.system == system and row.alpha is not None]
        if level and sampled:
            mean = float(np.mean(level))
            found = fairness_intervals(
                [row.ee_d_norm for row in sampled], [row.eu_norm for row in sampled], mean
            )
            even = [row for row in rows if row.system == against and row.alpha is None]
            levels = _own_levels(sampled, even)
            paired = fairness_intervals(
                [row.ee_d_norm for row in sampled], [row.eu_norm for row in sampled], levels
            )
            edges = list(pairwise(found.edges.tolist()))
            yield SystemFairness(
                system,
                against,
                mean,
                found,
                tuple(level_difference(sampled, even, low, high, bootstrap) for low, high in edges),
                paired,
                tuple(paired_level_difference(sampled, even, low, high, bootstrap) for low, high in edges),
            )


def level_difference(
    sampled: Sequence[UtilityRow], even: Sequence[UtilityRow], low: float, high: float, bootstrap: Bootstrap
) -> BootstrapInterval:
    """Return the utility at one level of fairness minus the mean of the deterministic ranking.

    The paper's form (table 1). Queries are resampled jointly for both means. There is no interval with fewer
    than 12 queries at the level.

    Args:
        sampled: rows of one system with an α.
        even: rows of the deterministic ranking.
        low: lower edge of the level, included; normalised EE-D.
        high: upper edge, not included.
        bootstrap: how the interval is computed.
    """
    points = [*sampled, *even]
    utility = np.array([row.eu_norm for row in points])
    disparity = np.array([row.ee_d_norm for row in points])
    is_sampled = np.arange(len(points)) < len(sampled)
    defined = ~np.isnan(utility)
    here = is_sampled & defined & (disparity >= low) & (disparity < high)
    held_against = ~is_sampled & defined

    def difference(drawn: IntArray) -> float:
        mine, theirs = utility[drawn][here[drawn]], utility[drawn][held_against[drawn]]
        return float(mine.mean() - theirs.mean()) if len(mine) and len(theirs) else float("nan")

    name = f"fairness {sampled[0].system} {low:g}"
    found = bootstrap.statistic(name, [row.query_id for row in points], difference)
    queries = len({row.query_id for row, at in zip(points, here, strict=True) if at})
    if 0 < queries < LEAST_DIFFERING:
        return replace(found, low=np.nan, high=np.nan, missing=f"queries at this level: only {queries}")
    return found


def paired_level_difference(
    sampled: Sequence[UtilityRow], even: Sequence[UtilityRow], low: float, high: float, bootstrap: Bootstrap
) -> BootstrapInterval:
    """Return the mean difference of one level's points to the deterministic ranking of their own query.

    Queries without a point at the level have no part in it. The interval is that of
    :func:`~evenmesh_core.sparse_means.sparse_interval`. Arguments as :func:`level_difference`.
    """
    levels = _own_levels(sampled, even)
    here = [
        (row.query_id, row.eu_norm - level)
        for row, level in zip(sampled, levels.tolist(), strict=True)
        if low <= row.ee_d_norm < high and not np.isnan(row.eu_norm - level)
    ]
    if not here:
        nothing = float("nan")
        return BootstrapInterval(nothing, nothing, nothing, bootstrap.level, "t+2", 0, 0)
    queries, differences = zip(*here, strict=True)
    return sparse_interval(differences, queries=queries, level=bootstrap.level)


def _own_levels(sampled: Sequence[UtilityRow], even: Sequence[UtilityRow]) -> FloatArray:
    """Return the utility of the deterministic ranking of each row's query, ``nan`` without one."""
    own = {row.query_id: row.eu_norm for row in even}
    return np.array([own.get(row.query_id, np.nan) for row in sampled])


def _scored(metric: str) -> str:
    return metric if metric.startswith(RECORDED) else f"by {metric}"


def _tables(study: UtilityStudy) -> Iterable[Table]:
    yield Table.of(
        "summary",
        f"Expected utility, {study.k} passages given, answers scored {_scored(study.metric)}",
        study.summaries,
        *SYSTEM,
        Column("queries", "queries", ("num_queries",)),
        Column("unanswered", "unanswered", ("num_unanswered",)),
        *means(LABELS),
        note="The maximum of a query is the largest utility of any of its rankings, whatever system and α; "
        "queries where it is 0 are left out and counted.",
    )
    edges = (0, 0.2, 0.4, 0.6, 0.8, 1)
    levels = tuple(
        Column(f"ee_d_{low:g}_{high:g}".replace(".", "_"), f"EE-D {low:g}–{high:g}")
        for low, high in pairwise(edges)
    )
    against = (text("system", "system"), text("baseline", "held against"))
    yield Table(
        "fairness-paired",
        "Utility at five levels of fairness, minus that of the deterministic ranking of the same query",
        (*against, *levels),
        tuple((one.system, one.baseline_system, *one.paired_differences) for one in study.fairness),
        note="Each level includes its lower edge and not its upper; the lower, the fairer. Recommended: each "
        "point is held against its own query.",
    )
    yield Table(
        "fairness",
        "Utility at five levels of fairness, minus the mean of the deterministic ranking (the paper's form)",
        (*against, Column("baseline_value", "its EU, of its maximum"), *levels),
        tuple((one.system, one.baseline_system, one.baseline, *one.differences) for one in study.fairness),
        note="The queries of a level are others than those of the mean, so a difference may only say that "
        "the level holds easier queries; the table before holds each against itself.",
    )
    yield curve_table(study.curves)
    yield area_table(study.areas)
    yield comparison_table(study.comparisons, LABELS)
    yield Table.of(
        "queries",
        "Each query",
        study.rows,
        text("query_id", "query"),
        *SYSTEM,
        Column("rankings", "rankings", ("num_rankings",)),
        Column("unanswered", "unanswered", ("num_unanswered",)),
        Column("u_max", "largest utility"),
        *measures(LABELS),
    )
