"""Tables of the study of agents, and its hypotheses in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.files.agent_runs import BM25, OFFLINE, ONLINE, URAG
from evenmesh_lab.studies.agents import (
    MACRO,
    SIGNIFICANT,
    THIRDS,
    WITHOUT_IDS,
    AgentsStudy,
    Point,
    StreamThird,
    SystemComparison,
)
from evenmesh_lab.studies.tables import Cell, Column, Table, text


def tables(study: AgentsStudy) -> tuple[Table, ...]:
    """Return systems, significance, pairs, rounds, batches, streams, agreement, queries; no empty table."""
    return tuple(table for table in _tables(study) if table.rows)


def sentences(study: AgentsStudy) -> tuple[str, ...]:
    """Return one sentence for each hypothesis, which says whether it was confirmed."""
    by_pair = {(one.first, one.second): one for one in study.comparisons if one.agent == MACRO}
    found = [
        _sentence(by_pair[pair])
        for pair in (
            (URAG, BM25),
            (OFFLINE, BM25),
            (OFFLINE, URAG),
            (OFFLINE, f"{OFFLINE}{WITHOUT_IDS}"),
            (ONLINE, OFFLINE),
        )
        if pair in by_pair
    ]
    found += [
        _sentence_of_last_third(one, study.frozen_system)
        for one in study.thirds
        if one.agent == MACRO and one.third == THIRDS
    ]
    return tuple(found)


def _tables(study: AgentsStudy) -> Iterable[Table]:
    names = [one.name for one in study.systems]
    marks = {name: str(place) for place, name in enumerate(names, start=1)}
    yield Table(
        "systems",
        "What each way of ranking is worth to each agent",
        (
            text("agent", "agent"),
            text("dataset", "data set"),
            Column("queries", "queries"),
            *(Column(_column(name), f"{marks[name]} {name}") for name in names),
        ),
        (
            *(
                (agent, dataset, size, *(one.by_agent[place] for one in study.systems))
                for place, (agent, dataset, size) in enumerate(
                    zip(study.agents, study.datasets, study.num_queries, strict=True)
                )
            ),
            (MACRO, "", sum(study.num_queries), *(one.macro for one in study.systems)),
        ),
        note=_note(study),
    )
    yield Table(
        "significance",
        "Significantly better than",
        (text("agent", "agent"), *(text(_column(name), f"{marks[name]} {name}") for name in names)),
        tuple(
            (agent, *(_beaten(study, agent, name, marks) for name in names))
            for agent in (*study.agents, MACRO)
        ),
        note="Numbers of the systems over which it is better with p < 0.05 by McNemar's test (first seed), "
        "as in the paper's table 1; for utilities other than 0 and 1, and for the macro-average, by the "
        "bootstrap over queries.",
    )
    yield Table.of(
        "comparisons",
        "Pairs of systems",
        study.comparisons,
        text("agent", "agent"),
        text("first", "first"),
        text("second", "second"),
        Column("queries", "queries", ("difference", "defined")),
        Column("difference", "first − second"),
        Column("p_value", "p, paired"),
        Column("only_first", "first alone right", ("mcnemar", "only_first")),
        Column("only_second", "second alone right", ("mcnemar", "only_second")),
        Column("mcnemar_p", "p, McNemar", ("mcnemar", "p_value")),
        Column("p_holm", "p, Holm"),
        text("verdict", "first is"),
        note="p-values are two-sided. The one by Holm adjusts McNemar's, or without it and for the "
        "macro-average the bootstrap's, for the number of pairs of an agent; the verdict is by the "
        "bootstrap's, of each pair alone. McNemar's test of the macro-average takes each pair of an agent "
        "and a query as one of its own; the bootstrap draws a query for all agents that asked it.",
    )
    yield _points("rounds", "Rounds of training", "round", study.rounds)
    yield _points("batches", "Queries between two updates", "b", study.batches)
    yield Table.of(
        "stream",
        "Thirds of the stream",
        study.thirds,
        text("agent", "agent"),
        Column("third", "third"),
        Column("queries", "queries", ("num_queries",)),
        Column("learning", ONLINE),
        Column("frozen", study.frozen_system),
        Column("difference", f"{ONLINE} − {study.frozen_system}"),
        Column("p_value", "p, paired"),
    )
    yield Table.of(
        "agreement",
        "How alike the lists of two agents are",
        study.agreements,
        text("system", "system"),
        text("first", "agent"),
        text("second", "and agent"),
        Column("queries", "queries", ("tau", "defined")),
        Column("tau", "Kendall's τ"),
        Column("jaccard", "Jaccard"),
        note=f"Of the best {study.depth} passages. A passage that one list lacks ranks below all of it.",
    )
    yield Table(
        "queries",
        "Each query",
        (
            text("agent", "agent"),
            text("query_id", "query"),
            *(Column(_column(name), f"{marks[name]} {name}") for name in names),
        ),
        tuple((row.agent, row.query_id, *row.utilities) for row in study.rows),
    )


def _points(name: str, title: str, label: str, points: Sequence[Point]) -> Table:
    columns = (text("system", "system"), Column("place", label), Column("macro", MACRO))
    return Table.of(name, title, points, *columns)


def _beaten(study: AgentsStudy, agent: str, name: str, marks: Mapping[str, str]) -> Cell:
    """Return the numbers of the systems that ``name`` is significantly better than."""
    found = []
    for one in study.comparisons:
        if one.agent != agent or name not in (one.first, one.second):
            continue
        sign = 1 if one.first == name else -1
        if one.deciding < SIGNIFICANT and sign * one.difference.value > 0:
            found.append(marks[one.second if sign == 1 else one.first])
    return " ".join(sorted(found, key=int)) or "–"


def _note(study: AgentsStudy) -> str:
    parts = [f"Mean utility. {study.statement()}."]
    for one in study.systems:
        if len(one.seeds) > 1:
            spread = np.std(one.macro_by_seed, ddof=1)
            each = ", ".join(f"{value:.3f}" for value in one.macro_by_seed)
            parts.append(f"{one.name}: macro-average by seed {each} (standard deviation {spread:.3f}).")
    sizes = {name.name: {one.defined for one in name.by_agent if one is not None} for name in study.systems}
    if any(None in one.by_agent for one in study.systems) or len(set(map(frozenset, sizes.values()))) > 1:
        parts.append("Not all systems were asked all queries: compare pairs in the table of pairs.")
    return " ".join(parts)


def _sentence(one: SystemComparison) -> str:
    test = "" if one.mcnemar is None else f", McNemar p = {one.mcnemar.p_value:.3g}"
    numbers = f"{_signed(one.difference)} in macro-average utility ({_paired(one.p_value)}{test})"
    return f"{one.first} − {one.second}: {numbers}. {_conclusion(one.difference.value, one.p_value)}"


def _sentence_of_last_third(one: StreamThird, frozen: str) -> str:
    return (
        f"{ONLINE} − {frozen} over the last third of the stream ({one.num_queries:,} queries): "
        f"{_signed(one.difference)} "
        f"({_paired(one.p_value)}). {_conclusion(one.difference.value, one.p_value)}"
    )


def _paired(p_value: float) -> str:
    return "no paired p" if np.isnan(p_value) else f"paired p = {p_value:.3g}"


def _signed(one: BootstrapInterval) -> str:
    if one.missing:
        return f"{one.value:+.4f} (no interval: {one.missing})".replace("-", "−")
    return f"{one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}]".replace("-", "−")


def _conclusion(difference: float, p_value: float) -> str:
    if np.isnan(p_value):
        return "Too few queries to tell."
    if p_value < SIGNIFICANT:
        return "The first is better." if difference > 0 else "The first is worse."
    if difference == 0:
        return "No difference."
    direction = "higher" if difference > 0 else "lower"
    return f"The first is {direction}, but not significantly: this may be chance."


def _column(name: str) -> str:
    return name.replace(",", "").replace(" ", "_").replace("-", "_")
