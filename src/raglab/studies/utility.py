"""The utility study: how good the answers of an audit are, and what fairness costs.

Source: fair-rag §3.1, §3.3.2, §3.3.3, §5, appendices B and C.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ragcore.arrays import IntArray, count
from ragcore.errors import InvalidInput
from ragcore.intervals import BootstrapInterval
from ragcore.text_metrics import LAMP_METRICS, accuracy, exact_match, lamp_utility, rouge, token_f1
from ragcore.utility import (
    FairnessIntervals,
    expected_utility,
    fairness_intervals,
    maximum_utility,
    normalized_expected_utility,
)
from raglab.files.audits import QueryAudit, Sampling
from raglab.files.failure import FileError
from raglab.files.labels import Labels
from raglab.studies.curves import Curve, curve
from raglab.studies.exposure import (
    compare_systems,
    comparison_table,
    curve_table,
    judgements,
    longest_ranking,
    metrics_of,
    universe,
)
from raglab.studies.tables import Column, Table, alpha_shown, by_configuration, text
from raglab.studies.uncertainty import Bootstrap, Comparison

AnswerMetric = Callable[[str, tuple[str, ...]], float]
"""From an answer and its references to a utility from 0, higher is better."""


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
        "rougeL": lambda answer, references: rouge(answer, references, "rougeL"),
        **{task: _lamp(task) for task in LAMP_METRICS},
    }
)
"""Metrics of answers by name."""

MEASURES = ("eu", "eu_norm", "ee_d_norm", "ee_r_norm")
LABELS: Mapping[str, str] = {
    "eu": "EU",
    "eu_norm": "EU, of its maximum",
    "ee_d_norm": "EE-D, of its bound",
    "ee_r_norm": "EE-R, of its bound",
}


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


@dataclass(frozen=True, slots=True)
class UtilityStudy:
    """What the study found."""

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
    fairness: tuple[SystemFairness, ...]
    """For each system that has sampled rankings; empty where no rankings are deterministic (without α)."""
    comparisons: tuple[Comparison, ...]
    """The first system against each other, at the same α."""

    def tables(self) -> tuple[Table, ...]:
        """Summary, levels of fairness, curves, comparisons, and the rows of each query, in this order."""
        return tuple(table for table in _tables(self) if table.rows)


def measure(
    queries: Iterable[QueryAudit],
    labels: Labels | None = None,
    *,
    k: int,
    metric: str = "token_f1",
    weighted: bool = False,
    min_grade: float = 1.0,
    graded: bool = False,
    baseline: str | None = None,
    bootstrap: Bootstrap | None = None,
) -> UtilityStudy:
    """Measures the utility of an audit's answers; queries are looked at one by one and let go.

    Args:
        queries: as :func:`raglab.files.read_audits` gives them.
        labels: which passages are useful, for the quality of rankings; None leaves that out.
        k: number of passages the generator is given, from 1.
        metric: how answers without a ``utility`` are scored, a name of :data:`METRICS`.
        weighted: whether rankings are weighed by their probability in place of alike; all need one then.
        min_grade: grade from which a passage is useful, above 0.
        graded: whether higher grades deserve to be shown first.
        baseline: the system whose deterministic rankings fairness is held against; None takes each system's
            own.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a file's record is at fault: no query has a utility, an answer has no references, a ranking
            no probability, or the labels do not know its query.
        InvalidInput: an argument out of range.
    """
    depth = count("k", k)
    if metric not in METRICS:
        raise InvalidInput("metric", metric, ", ".join(METRICS))
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
        utilities = [_utilities(query, sampling, METRICS[metric]) for sampling in query.samplings]
        known = [[value for value in values if value is not None] for values in utilities]
        u_max = maximum_utility([values for values in known if values]) if any(known) else float("nan")
        for sampling, values in zip(query.samplings, utilities, strict=True):
            exposed = metrics_of(sampling, *items[sampling.system], depth)
            eu = _expected(query, sampling, values, weighted)
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
    order = by_configuration([(row.system, row.alpha) for row in rows])
    systems = list(dict.fromkeys(system for system, _ in order))
    if baseline is not None and baseline not in systems:
        raise InvalidInput("baseline", baseline, ", ".join(systems))
    return UtilityStudy(
        k=depth,
        longest=longest,
        metric=metric,
        weighted=weighted,
        bootstrap=settings,
        rows=tuple(rows),
        summaries=tuple(_summary(key, rows, settings) for key in order),
        curves=_curves(rows, systems, settings),
        fairness=tuple(_fairness(rows, systems, baseline, settings)),
        comparisons=compare_systems(
            {("eu", row.system, row.alpha): {} for row in rows},
            [("eu", row.system, row.alpha, row.query_id, row.eu) for row in rows],
            settings,
        ),
    )


def _utilities(query: QueryAudit, sampling: Sampling, metric: AnswerMetric) -> list[float | None]:
    scored: dict[str, float] = {}  # samples often agree, and some metrics are slow
    values: list[float | None] = []
    for answer, utility in zip(sampling.answers, sampling.utilities, strict=True):
        if utility is None and answer is not None:
            if not query.references:
                raise FileError(
                    query.path,
                    query.line,
                    f"begins query {query.query_id!r}, whose answers have neither utilities nor references",
                )
            if answer not in scored:
                scored[answer] = metric(answer, query.references)
            utility = scored[answer]
        values.append(utility)
    return values


def _expected(query: QueryAudit, sampling: Sampling, values: list[float | None], weighted: bool) -> float:
    answered = [(place, value) for place, value in enumerate(values) if value is not None]
    if not answered:
        return float("nan")
    utilities = [value for _, value in answered]
    if not weighted:
        return expected_utility(utilities)
    logs = [sampling.log_probabilities[place] for place, _ in answered]
    probable = [log for log in logs if log is not None]
    if len(probable) < len(logs):
        raise FileError(
            query.path,
            query.line,
            f"begins query {query.query_id!r}, where a ranking has no log_probability to weigh it by",
        )
    # Relative to the likeliest, so that the probabilities of long rankings do not vanish.
    return expected_utility(utilities, np.exp(np.array(probable) - max(probable)))


def _summary(key: tuple[str, float | None], rows: list[UtilityRow], bootstrap: Bootstrap) -> UtilitySummary:
    mine = [row for row in rows if (row.system, row.alpha) == key]
    means = {
        name: bootstrap.mean(f"{name} {key[0]} {key[1]}", [getattr(row, name) for row in mine])
        for name in MEASURES
    }
    return UtilitySummary(*key, len(mine), sum(row.num_unanswered for row in mine), means)


def _curves(rows: list[UtilityRow], systems: list[str], bootstrap: Bootstrap) -> tuple[Curve, ...]:
    found = []
    for name, x, y in (
        ("disparity-utility", "ee_d_norm", "eu_norm"),
        ("quality-utility", "ee_r_norm", "eu_norm"),
        ("disparity-quality", "ee_d_norm", "ee_r_norm"),
    ):
        for system in systems:
            points = [
                (row.query_id, row.alpha, getattr(row, x), getattr(row, y))
                for row in rows
                if row.system == system
            ]
            found.append(curve(name, system, points, bootstrap))
    return tuple(one for one in found if one is not None)


def _fairness(
    rows: list[UtilityRow], systems: list[str], baseline: str | None, bootstrap: Bootstrap
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
            yield SystemFairness(
                system,
                against,
                mean,
                found,
                tuple(_difference(place, found, system, sampled, even, bootstrap) for place in range(5)),
            )


def _difference(
    place: int,
    found: FairnessIntervals,
    system: str,
    sampled: Sequence[UtilityRow],
    even: Sequence[UtilityRow],
    bootstrap: Bootstrap,
) -> BootstrapInterval:
    """Utility at one level of fairness minus the deterministic ranking's, with queries drawn for both."""
    points = [*sampled, *even]
    utility = np.array([row.eu_norm for row in points])
    disparity = np.array([row.ee_d_norm for row in points])
    low, high = found.edges[place], found.edges[place + 1]
    is_sampled = np.arange(len(points)) < len(sampled)
    defined = ~np.isnan(utility)
    here = is_sampled & defined & (disparity >= low) & (disparity < high)
    held_against = ~is_sampled & defined

    def difference(drawn: IntArray) -> float:
        mine, theirs = utility[drawn][here[drawn]], utility[drawn][held_against[drawn]]
        return float(mine.mean() - theirs.mean()) if len(mine) and len(theirs) else float("nan")

    name = f"fairness {system} {low:g}"
    return bootstrap.statistic(name, [row.query_id for row in points], difference)


def _tables(study: UtilityStudy) -> Iterable[Table]:
    yield Table(
        "summary",
        f"Expected utility, {study.k} passages given, answers scored by {study.metric}",
        (
            text("system", "system"),
            text("alpha", "α"),
            Column("queries", "queries"),
            Column("unanswered", "unanswered"),
            *(Column(name, LABELS[name]) for name in MEASURES),
        ),
        tuple(
            (
                one.system,
                alpha_shown(one.alpha),
                one.num_queries,
                one.num_unanswered,
                *(one.means[name] for name in MEASURES),
            )
            for one in study.summaries
        ),
        note="The maximum of a query is the largest utility of any of its rankings, whatever system and α; "
        "queries where it is 0 are left out and counted.",
    )
    yield Table(
        "fairness",
        "Utility at five levels of fairness, minus that of the deterministic ranking",
        (
            text("system", "system"),
            text("baseline", "held against"),
            Column("baseline_value", "its EU, of its maximum"),
            *(
                Column(f"ee_d_{low:g}_{high:g}".replace(".", "_"), f"EE-D {low:g}–{high:g}")
                for low, high in zip((0, 0.2, 0.4, 0.6, 0.8), (0.2, 0.4, 0.6, 0.8, 1), strict=True)
            ),
        ),
        tuple((one.system, one.baseline_system, one.baseline, *one.differences) for one in study.fairness),
        note="Each level includes its lower edge and not its upper; the lower, the fairer.",
    )
    yield curve_table(study.curves)
    yield comparison_table(study.comparisons, LABELS)
    yield Table(
        "queries",
        "Each query",
        (
            text("query_id", "query"),
            text("system", "system"),
            text("alpha", "α"),
            Column("rankings", "rankings"),
            Column("unanswered", "unanswered"),
            Column("u_max", "largest utility"),
            *(Column(name, LABELS[name]) for name in MEASURES),
        ),
        tuple(
            (
                row.query_id,
                row.system,
                alpha_shown(row.alpha),
                row.num_rankings,
                row.num_unanswered,
                row.u_max,
                *(getattr(row, name) for name in MEASURES),
            )
            for row in study.rows
        ),
    )
