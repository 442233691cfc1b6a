"""The exposure study: how evenly the rankings of an audit show passages, and how well they show useful ones.

Source: Kim & Diaz 2025, §3.3.1, §3.3.3, §5, appendix C.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evenmesh_core.arrays import FloatArray, IntArray, count
from evenmesh_core.exposure import (
    BrowsingModel,
    ExposureMetrics,
    exposure_metrics,
    group_exposure,
    system_exposure,
    top_k,
)
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.files.audits import QueryAudit, Sampling
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.labels import Labels
from evenmesh_lab.studies.curves import Curve, CurveArea, areas_of, curves_of
from evenmesh_lab.studies.tables import SYSTEM, Column, Table, by_configuration, means, measures, text
from evenmesh_lab.studies.uncertainty import (
    COMPARISON_NOTE,
    UNIT,
    UPWARD,
    Bootstrap,
    Comparison,
    adjusted,
    compare,
)

LABELS: Mapping[str, str] = {
    "ee_d": "EE-D",
    "ee_r": "EE-R",
    "ee_l": "EE-L",
    "ee_d_norm": "EE-D, of its bound",
    "ee_r_norm": "EE-R, of its bound",
}
_CURVES = (("disparity-quality", "ee_d_norm", "ee_r_norm"),)
"""Name of each curve, and the measures it is over."""
UNKNOWN = "(unknown)"
"""The group of passages that no file gives one."""


@dataclass(frozen=True, slots=True)
class ExposureRow:
    """One query under one system and α."""

    query_id: str
    system: str
    alpha: float | None
    num_rankings: int
    num_items: int
    """Passages that could have been shown, and useful ones that could not; see :func:`universe`."""
    num_useful: int | None
    """None without labels."""
    ee_d: float
    ee_r: float
    """``nan`` without labels, or without useful passages; so are the next two."""
    ee_l: float
    ee_d_norm: float
    ee_r_norm: float


@dataclass(frozen=True, slots=True)
class ExposureSummary:
    """One system at one α: means over queries."""

    system: str
    alpha: float | None
    num_queries: int
    means: Mapping[str, BootstrapInterval]
    """By the name of the measure."""


@dataclass(frozen=True, slots=True)
class Share:
    """Exposure of one passage or group under one system and α, summed over the queries."""

    name: str
    exposure: float
    """Sum of the expected exposure; attention."""
    share: float
    """Share of all exposure, 0 to 1."""
    target: float | None
    """Sum of the target exposure; None without labels."""
    ratio: float
    """Exposure over target, 1 where fair; ``nan`` without a target."""


@dataclass(frozen=True, slots=True)
class Exposures:
    """Exposure of passages and groups under one system and α."""

    system: str
    alpha: float | None
    items: tuple[Share, ...]
    """The passages that are most exposed under all systems and α together, the same for each."""
    groups: tuple[Share, ...]
    """All groups, most exposed first; empty without groups."""
    worst_group_ratio: BootstrapInterval | None
    """Smallest over largest ratio of the groups, mean over queries, 1 where fair; None without groups."""


@dataclass(frozen=True, slots=True)
class ExposureStudy:
    """Results of the study."""

    k: int
    longest: int
    """Length of the longest ranking; where it is below ``k``, no ranking can reach the bound of EE-D."""
    bootstrap: Bootstrap
    rows: tuple[ExposureRow, ...]
    summaries: tuple[ExposureSummary, ...]
    curves: tuple[Curve, ...]
    """Disparity against quality, one for each system with labels."""
    areas: tuple[CurveArea, ...]
    """Areas under the curves over the range that all systems cover."""
    exposures: tuple[Exposures, ...]
    group_by: str
    """The kind of groups; empty without groups."""
    comparisons: tuple[Comparison, ...]
    """The first system against each other, at the same α."""
    unranked: int
    """Queries that are judged and that no file ranks."""

    def tables(self) -> tuple[Table, ...]:
        """Return summary, curves, groups, comparisons, passages, and the rows of each query, in order."""
        return tuple(table for table in _tables(self) if table.rows)


def measure(
    queries: Iterable[QueryAudit],
    labels: Labels | None = None,
    *,
    k: int,
    min_grade: float = 1.0,
    graded: bool = False,
    browsing: BrowsingModel | None = None,
    groups: Mapping[str, str] | None = None,
    group_by: str = "",
    top_items: int = 20,
    bootstrap: Bootstrap | None = None,
) -> ExposureStudy:
    """Measure the exposure of an audit, one query at a time in memory.

    Args:
        queries: as :func:`evenmesh_lab.files.read_audits` gives them.
        labels: which passages are useful; None measures disparity alone.
        k: number of passages the generator is given, from 1.
        min_grade: grade from which a passage is useful, above 0.
        graded: whether higher grades deserve to be shown first; if not, useful passages count equally.
        browsing: attention by rank; None means the same to the first k.
        groups: provider or group of each passage.
        group_by: what ``groups`` are, for people.
        top_items: how many passages to list.
        bootstrap: how intervals are computed.

    Raises:
        FileError: a file's record is at fault, or ranks a query that has no labels.
        InvalidInput: an argument out of range.
    """
    depth = count("k", k)
    settings = bootstrap or Bootstrap()
    rows: list[ExposureRow] = []
    sums: dict[tuple[str, float | None], _Sums] = {}
    seen: set[str] = set()
    longest = 0
    for query in queries:
        longest = max(longest, longest_ranking(query))
        seen.add(query.query_id)
        judged = judgements(query, labels, min_grade, graded)
        items = {
            system: universe(query, system, judged)
            for system in dict.fromkeys(one.system for one in query.samplings)
        }
        for sampling in query.samplings:
            places, usefulness = items[sampling.system]
            names = list(places)
            of_group = None if groups is None else [groups.get(name, UNKNOWN) for name in names]
            found = metrics_of(sampling, places, usefulness, depth, browsing)
            rows.append(_row(query.query_id, sampling, usefulness, judged is not None, found))
            kept = sums.setdefault((sampling.system, sampling.alpha), _Sums())
            kept.add(names, of_group, found)
    order = by_configuration(list(sums))
    return ExposureStudy(
        k=depth,
        longest=longest,
        bootstrap=settings,
        rows=tuple(rows),
        summaries=tuple(_summary(key, rows, settings) for key in order),
        curves=curves_of(rows, _CURVES, settings),
        areas=areas_of(rows, _CURVES, settings),
        exposures=_exposures(sums, order, labels is not None, top_items, settings),
        group_by=group_by if groups is not None else "",
        comparisons=compare_systems(rows, ("ee_d_norm", "ee_r_norm"), settings),
        unranked=0 if labels is None else len(labels.grades.keys() - seen),
    )


def judgements(
    query: QueryAudit, labels: Labels | None, min_grade: float, graded: bool
) -> Mapping[str, float] | None:
    """Return the usefulness of the passages judged for a query; None without labels.

    Raises:
        FileError: the labels do not know the query.
    """
    if labels is None:
        return None
    grades = labels.grades.get(query.query_id)
    if grades is None:
        raise FileError(
            query.path,
            query.line,
            f"ranks the query {query.query_id!r}, of which {labels.path} knows nothing",
        )
    return {
        passage: (grade if graded else 1.0) if grade >= min_grade else 0.0
        for passage, grade in grades.items()
    }


def universe(
    query: QueryAudit, system: str, judged: Mapping[str, float] | None
) -> tuple[dict[str, int], FloatArray]:
    """Return indices and usefulness of a query's n items, which decide EE-R below k useful ones.

    They are what a system's rankings were drawn from, and useful passages that it missed: as the mesh counts
    them. Where the files do not say what that was, they are all that any system ranked or that is judged.
    """
    places: dict[str, int] = {}
    pool = query.pools.get(system)
    for passage in pool or ():
        places.setdefault(passage, len(places))
    for sampling in query.samplings:
        if pool is None or sampling.system == system:
            for ranking in sampling.rankings:
                for passage in ranking:
                    places.setdefault(passage, len(places))
    known = {} if judged is None else judged
    for passage, grade in known.items():
        if pool is None or grade > 0:
            places.setdefault(passage, len(places))
    usefulness = np.array([known.get(passage, 0.0) for passage in places])
    return places, usefulness


def longest_ranking(query: QueryAudit) -> int:
    """Return the length of the longest ranking of a query."""
    return max(len(ranking) for sampling in query.samplings for ranking in sampling.rankings)


def metrics_of(
    sampling: Sampling,
    places: Mapping[str, int],
    usefulness: FloatArray,
    k: int,
    browsing: BrowsingModel | None = None,
    weights: FloatArray | None = None,
) -> ExposureMetrics:
    """Return the exposure of one query's rankings under one system and α; ``weights`` have the sum 1."""
    flat = [places[passage] for ranking in sampling.rankings for passage in ranking]
    rankings: IntArray = np.array(flat, dtype=np.int64).reshape(len(sampling.rankings), -1)
    if weights is None:
        return exposure_metrics(rankings, usefulness, k=k, browsing=browsing)
    exposure = system_exposure(rankings[:, :k], len(usefulness), browsing or top_k(k), probabilities=weights)
    return exposure_metrics(exposure=exposure, useful_mask=usefulness, k=k, browsing=browsing)


def compare_systems(
    rows: Iterable[Any], names: Sequence[str], bootstrap: Bootstrap
) -> tuple[Comparison, ...]:
    """Compare the first system with each other, measure by measure, at each α that both have.

    Args:
        rows: the values of a query under one system and α each.
        names: the measures, attributes of the rows.
        bootstrap: how intervals are computed.
    """
    columns: dict[tuple[str, str, float | None], dict[str, float]] = {}
    for row in rows:
        for name in names:
            columns.setdefault((name, row.system, row.alpha), {})[row.query_id] = getattr(row, name)
    systems = list(dict.fromkeys(system for _, system, _ in columns))
    found = []
    for (measure_name, system, alpha), column in columns.items():
        if system != systems[0]:
            continue
        for other in systems[1:]:
            against = columns.get((measure_name, other, alpha))
            if against is not None:
                found.append(compare(bootstrap, measure_name, (system, column), (other, against), alpha))
    return adjusted([one for one in found if one is not None])


def means_of(
    key: tuple[str, float | None],
    rows: Iterable[Any],
    names: Iterable[str],
    bootstrap: Bootstrap,
    *,
    outcomes: Container[str] = (),
) -> dict[str, BootstrapInterval]:
    """Return the means of measures over the rows of one system and α, by name.

    Args:
        key: system and α.
        rows: of each query.
        names: of the measures.
        bootstrap: how intervals are computed.
        outcomes: measures whose values may be outcomes, each 0 or 1: see :meth:`.Bootstrap.share`.
    """
    kept = list(rows)
    found = {}
    for name in names:
        label, values = f"{name} {key[0]} {key[1]}", [getattr(row, name) for row in kept]
        if name in outcomes:
            found[name] = bootstrap.share(label, values)
        else:
            found[name] = bootstrap.mean(label, values, within=UNIT if name.endswith("_norm") else UPWARD)
    return found


class _Sums:
    """Exposure summed over queries, under one system and α."""

    def __init__(self) -> None:
        self._items: dict[str, list[float]] = {}
        self._groups: dict[str, list[float]] = {}
        self._worst: list[float] = []

    def add(self, names: list[str], groups: list[str] | None, found: ExposureMetrics) -> None:
        for name, exposure, target in zip(names, found.exposure.tolist(), found.target.tolist(), strict=True):
            entry = self._items.get(name)
            if entry is None:
                self._items[name] = [exposure, target]
            else:
                entry[0] += exposure
                entry[1] += target
        if groups is not None:
            summed = group_exposure(found.exposure, found.target, groups)
            self._worst.append(summed.worst_ratio)
            for label, exposure, target in zip(summed.labels, summed.exposure, summed.target, strict=True):
                entry = self._groups.setdefault(str(label), [0.0, 0.0])
                entry[0] += float(exposure)
                entry[1] += float(target)

    def exposure_to(self, totals: dict[str, float]) -> None:
        for name, (exposure, _) in self._items.items():
            totals[name] = totals.get(name, 0.0) + exposure

    def exposures(
        self, key: tuple[str, float | None], with_target: bool, items: Sequence[str], bootstrap: Bootstrap
    ) -> Exposures:
        total = sum(exposure for exposure, _ in self._items.values())
        listed = {name: self._items[name] for name in items if name in self._items}
        worst = None
        if self._groups:
            worst = bootstrap.mean(f"worst_group_ratio {key[0]} {key[1]}", self._worst, within=UNIT)
        return Exposures(
            *key,
            _shares(listed, total, with_target),
            _shares(self._groups, total, with_target),
            worst,
        )


def _exposures(
    sums: Mapping[tuple[str, float | None], _Sums],
    order: Sequence[tuple[str, float | None]],
    with_target: bool,
    top: int,
    bootstrap: Bootstrap,
) -> tuple[Exposures, ...]:
    totals: dict[str, float] = {}
    for one in sums.values():
        one.exposure_to(totals)
    items = sorted(totals, key=lambda name: (-totals[name], name))[:top]
    return tuple(sums[key].exposures(key, with_target, items, bootstrap) for key in order)


def _shares(sums: Mapping[str, list[float]], total: float, with_target: bool) -> tuple[Share, ...]:
    ordered = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))
    return tuple(
        Share(
            name,
            exposure,
            exposure / total if total else 0.0,
            target if with_target else None,
            exposure / target if with_target and target > 0 else float("nan"),
        )
        for name, (exposure, target) in ordered
    )


def _row(
    query: str, sampling: Sampling, usefulness: FloatArray, labelled: bool, found: ExposureMetrics
) -> ExposureRow:
    return ExposureRow(
        query,
        sampling.system,
        sampling.alpha,
        len(sampling.rankings),
        len(usefulness),
        int(np.count_nonzero(usefulness)) if labelled else None,
        found.ee_d,
        found.ee_r,
        found.ee_l if usefulness.any() else float("nan"),
        found.ee_d_norm,
        found.ee_r_norm,
    )


def _summary(key: tuple[str, float | None], rows: list[ExposureRow], bootstrap: Bootstrap) -> ExposureSummary:
    mine = [row for row in rows if (row.system, row.alpha) == key]
    return ExposureSummary(*key, len(mine), means_of(key, mine, LABELS, bootstrap))


def _tables(study: ExposureStudy) -> Iterable[Table]:
    share = (
        Column("exposure", "exposure", ("share", "exposure")),
        Column("share", "share", ("share", "share")),
        Column("target", "target", ("share", "target")),
        Column("ratio", "exposure / target", ("share", "ratio")),
    )
    yield Table.of(
        "summary",
        f"Expected exposure in the first {study.k}",
        study.summaries,
        *SYSTEM,
        Column("queries", "queries", ("num_queries",)),
        *means(LABELS),
        note="EE-D is 1 if the same passages are always shown, and k / n if all n passages are shown equally "
        "often. EE-R and EE-L need useful passages; queries without any are left out and counted.",
    )
    yield curve_table(study.curves)
    yield area_table(study.areas)
    yield Table.of(
        "groups",
        f"Exposure by {study.group_by}",
        [_ShareRow(one.system, one.alpha, each) for one in study.exposures for each in one.groups],
        *SYSTEM,
        text("group", study.group_by or "group", ("share", "name")),
        *share,
    )
    yield comparison_table(study.comparisons, LABELS)
    yield Table.of(
        "passages",
        "Most exposed passages",
        [_ShareRow(one.system, one.alpha, each) for one in study.exposures for each in one.items],
        *SYSTEM,
        text("passage", "passage", ("share", "name")),
        *share,
    )
    yield Table.of(
        "queries",
        "Each query",
        study.rows,
        text("query_id", "query"),
        *SYSTEM,
        Column("rankings", "rankings", ("num_rankings",)),
        Column("passages", "passages", ("num_items",)),
        Column("useful", "useful", ("num_useful",)),
        *measures(LABELS),
    )


class _ShareRow(NamedTuple):
    system: str
    alpha: float | None
    share: Share


def curve_table(curves: Iterable[Curve]) -> Table:
    """Return slopes and areas of curves; a system with one α, as the oracle, trades nothing off."""
    return Table.of(
        "curves",
        "Tradeoffs over all queries and α",
        [one for one in curves if len(one.points) > 1],
        text("curve", "curve", ("name",)),
        text("system", "system"),
        Column("points", "points", ("tradeoff", "fit", "points")),
        Column("undefined", "undefined", ("tradeoff", "fit", "undefined")),
        Column("slope", "slope", ("tradeoff", "slope")),
        Column("auc", "AUC", ("tradeoff", "auc")),
        Column("auc_from", "from", ("tradeoff", "fit", "auc_from")),
        Column("auc_to", "to", ("tradeoff", "fit", "auc_to")),
        note="Intervals by bootstrap over queries, of fewer than 30 Student's t by the spread of the "
        "resamples. A steeper slope is a stronger tradeoff. The AUC is the "
        "mean height of the curve of averages at each α between the first and the last of them; systems that "
        "cover different ranges are compared in the next table.",
    )


def area_table(areas: Iterable[CurveArea]) -> Table:
    """Return areas under curves over the range that all systems cover."""
    return Table.of(
        "areas",
        "Areas over the common range",
        areas,
        text("curve", "curve", ("name",)),
        text("system", "system"),
        Column("low", "from"),
        Column("high", "to"),
        Column("area", "AUC"),
        Column("difference", "first − this"),
        note="Mean height of each system's curve over the range that all of them cover; differences from the "
        "first system on the same resamples of queries.",
    )


def comparison_table(comparisons: Iterable[Comparison], labels: Mapping[str, str]) -> Table:
    """Return pairs of systems."""
    return Table.of(
        "comparisons",
        "Systems on the same queries",
        comparisons,
        text("measure", "measure", lambda one: labels.get(one.measure, one.measure)),
        SYSTEM[1],
        text("first", "first"),
        text("second", "second"),
        Column("queries", "queries", ("difference", "defined")),
        Column("difference", "first − second"),
        Column("p_value", "p, paired"),
        Column("mcnemar_p", "p, McNemar", ("mcnemar", "p_value")),
        Column("p_holm", "p, Holm"),
        note=COMPARISON_NOTE,
    )
