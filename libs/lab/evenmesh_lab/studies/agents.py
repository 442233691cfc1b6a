"""The study of agents: the utility to each of a search engine that learns from them.

Source: Salemi & Zamani 2025, section 5.2: table 1 (systems by agent, macro-average, McNemar),
figure 2 (rounds with and without personalisation, batch size online), figure 3 (how alike agents' lists are).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import nan
from typing import Final
from zlib import crc32

import numpy as np

from evenmesh_core.arrays import FloatArray
from evenmesh_core.errors import InvalidInput
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_core.list_agreement import jaccard, kendall_tau
from evenmesh_core.significance import McNemar, holm, mcnemar
from evenmesh_core.sparse_means import LEAST_DIFFERING, too_few
from evenmesh_lab.files.agent_runs import OFFLINE, ONLINE, SYSTEMS, AgentRunRecord
from evenmesh_lab.studies.uncertainty import UNIT, Bootstrap, compare

MACRO: Final = "macro-average"
"""Name of all agents together in tables."""

FROZEN: Final = "frozen"
"""A system that serves a stream of queries and does not learn from it."""

WITHOUT_IDS: Final = ", without ids"
"""Suffix of the name of a system that ranks without knowing the agent."""

_PAPERS_BATCH: Final = 256

SIGNIFICANT: Final = 0.05
"""p-value below which systems count as different."""

THIRDS: Final = 3
"""Number of parts of a stream that are compared."""


Values = Mapping[str, Mapping[str, float]]
"""Utilities by agent and query; ``nan`` where the agent gave no answer."""


@dataclass(frozen=True, slots=True)
class SystemFindings:
    """One way of ranking."""

    name: str
    iteration: int | None
    """Rounds of training of what is compared: the most there are."""
    batch_size: int | None
    seeds: tuple[int, ...]
    by_agent: tuple[BootstrapInterval | None, ...]
    """Mean utility of each agent; None where it was not asked."""
    macro: BootstrapInterval
    """Mean over agents of their means."""
    macro_by_seed: tuple[float, ...]
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SystemComparison:
    """Two ways of ranking, for one agent or for all."""

    agent: str
    first: str
    second: str
    difference: BootstrapInterval
    """Mean of first minus second over the queries that both have."""
    p_value: float
    """Two-sided and paired over queries: of the bootstrap, or of the interval where that is Student's."""
    mcnemar: McNemar | None
    """Test on the first seed; for all agents, on all pairs of agent and query. None unless all is 0 or 1."""
    p_holm: float = float("nan")
    """:attr:`deciding`, adjusted for the pairs of this agent (Holm)."""

    @property
    def deciding(self) -> float:
        """p-value to decide by: McNemar's where there is one; of all agents always the bootstrap's.

        McNemar's of all agents takes the answers of several agents to one query for independent, and is about
        the mean over answers, which may differ from the mean over agents even in its sign.
        """
        if self.mcnemar is None or self.agent == MACRO:
            return self.p_value
        return self.mcnemar.p_value

    @property
    def verdict(self) -> str:
        """Whether they differ, in words, by the paired p-value at 5 %."""
        if np.isnan(self.p_value):
            return "too few queries to tell"
        if self.p_value >= SIGNIFICANT:
            return "not significant"
        return "higher" if self.difference.value > 0 else "lower"


@dataclass(frozen=True, slots=True)
class Point:
    """A mean over agents at one place of a curve: after a number of rounds, or with a batch size."""

    system: str
    place: int
    macro: BootstrapInterval


@dataclass(frozen=True, slots=True)
class StreamThird:
    """A third of a stream of queries, in the order they came: a system that learns and one that does not."""

    agent: str
    third: int
    """1, 2 or 3."""
    num_queries: int
    learning: BootstrapInterval
    frozen: BootstrapInterval
    difference: BootstrapInterval
    p_value: float


@dataclass(frozen=True, slots=True)
class ListAgreement:
    """Agreement of the lists of two agents on the queries that both asked."""

    system: str
    first: str
    second: str
    tau: BootstrapInterval
    jaccard: BootstrapInterval


@dataclass(frozen=True, slots=True)
class QueryRow:
    """One query of one agent: its utility under each system, ``nan`` where that is not known."""

    agent: str
    query_id: str
    utilities: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class AgentsStudy:
    """Results of the study."""

    agents: tuple[str, ...]
    datasets: tuple[str, ...]
    """Data set of each agent."""
    num_queries: tuple[int, ...]
    """Number of queries of each agent."""
    distinct_queries: int
    """Number of queries of all agents, each counted once."""
    agent_versions: tuple[str, ...]
    systems: tuple[SystemFindings, ...]
    comparisons: tuple[SystemComparison, ...]
    rounds: tuple[Point, ...]
    batches: tuple[Point, ...]
    thirds: tuple[StreamThird, ...]
    frozen_system: str
    """The system that a stream is compared with: it does not learn from the stream."""
    agreements: tuple[ListAgreement, ...]
    depth: int
    """Passages of a list that are compared between agents."""
    rows: tuple[QueryRow, ...]
    bootstrap: Bootstrap

    def statement(self) -> str:
        """State the basis of the numbers: queries, agents, seeds, versions, intervals."""
        settings = self.bootstrap
        seeds = sorted({seed for one in self.systems if one.iteration is not None for seed in one.seeds})
        versions = sorted({version for one in self.systems for version in one.versions})
        parts = [
            f"N = {self.distinct_queries:,} queries, {sum(self.num_queries):,} answers of "
            f"{len(self.agents)} agents to each system",
            f"seeds {', '.join(map(str, seeds))}" if seeds else "nothing trained",
            f"generators {', '.join(self.agent_versions)}" if self.agent_versions else "",
            f"{len(versions)} reranker versions ({versions[0]}, …)"
            if len(versions) > 1
            else "".join(f"reranker {one}" for one in versions),
            f"{settings.level:.0%} intervals, bootstrap over queries, {settings.num_resamples:,} resamples, "
            f"seed {settings.seed}",
        ]
        return "; ".join(part for part in parts if part)


def measure(
    records: Sequence[AgentRunRecord],
    *,
    batch_size: int | None = None,
    depth: int = 10,
    bootstrap: Bootstrap | None = None,
) -> AgentsStudy:
    """Compare systems by their utility to agents.

    Of a system with several rounds the last counts, of one with several batch sizes that of ``batch_size``.
    With several seeds a query's utility is its mean over them.

    Args:
        records: what each agent made of each list.
        batch_size: of the online system that is compared; None takes the paper's 256, or the only one.
        depth: passages of a list that are compared between agents, from 1.
        bootstrap: how intervals are computed.

    Raises:
        InvalidInput: no records, no such batch size, or several none of which is the paper's.
    """
    if not records:
        raise InvalidInput("records", records, "at least one")
    if depth < 1:
        raise InvalidInput("depth", depth, "from 1")
    if batch_size is not None and all(one.batch_size != batch_size for one in records):
        sizes = sorted({one.batch_size for one in records if one.batch_size is not None})
        raise InvalidInput(
            "batch_size", batch_size, f"one of {', '.join(map(str, sizes)) or 'none there are'}"
        )
    settings = bootstrap or Bootstrap()
    runs = _Runs(records)
    chosen = {name: runs.compared(name, batch_size) for name in runs.systems}
    values = {name: runs.values(mine) for name, mine in chosen.items()}
    return AgentsStudy(
        agents=runs.agents,
        datasets=tuple(runs.dataset[agent] for agent in runs.agents),
        num_queries=tuple(len(runs.queries[agent]) for agent in runs.agents),
        distinct_queries=len({query for mine in runs.queries.values() for query in mine}),
        agent_versions=tuple(sorted({one.agent_version for one in records if one.agent_version})),
        systems=tuple(_findings(name, chosen[name], runs, settings) for name in runs.systems),
        comparisons=_adjusted(tuple(_comparisons(values, chosen, runs, settings))),
        rounds=tuple(_rounds(runs, settings)),
        batches=tuple(_batches(runs, settings)),
        thirds=tuple(_thirds(chosen, runs, settings)),
        frozen_system=_frozen_system(chosen),
        agreements=tuple(_agreements(chosen, depth, settings)),
        depth=depth,
        rows=tuple(
            QueryRow(
                agent, query, tuple(values[name].get(agent, {}).get(query, nan) for name in runs.systems)
            )
            for agent in runs.agents
            for query in runs.queries[agent]
        ),
        bootstrap=settings,
    )


class _Runs:
    """Records by system, and what they have in common."""

    def __init__(self, records: Sequence[AgentRunRecord]) -> None:
        self._by_system: dict[str, list[AgentRunRecord]] = {}
        self.dataset: dict[str, str] = {}
        self.queries: dict[str, dict[str, None]] = {}
        for one in records:
            name = one.system if one.personalised else f"{one.system}{WITHOUT_IDS}"
            self._by_system.setdefault(name, []).append(one)
            self.dataset.setdefault(one.agent, one.dataset or one.task_id)
            self.queries.setdefault(one.agent, {})[one.query_id] = None
        # agents of one data set stand together
        sets = dict.fromkeys(self.dataset.values())
        self.agents = tuple(agent for name in sets for agent in self.dataset if self.dataset[agent] == name)
        known = [name for system in SYSTEMS for name in (f"{system}{WITHOUT_IDS}", system)]
        there = self._by_system
        self.systems = (*(name for name in known if name in there), *(n for n in there if n not in known))

    def of(self, system: str) -> Sequence[AgentRunRecord]:
        """Return all records of a system; none for an unknown one."""
        return self._by_system.get(system, ())

    def compared(self, system: str, batch_size: int | None) -> list[AgentRunRecord]:
        """Return a system's records after its last round, at the given batch size; of a stream all."""
        mine = list(self.of(system))
        sizes = sorted({one.batch_size for one in mine if one.batch_size is not None})
        if sizes:
            wanted = batch_size if batch_size is not None else sizes[0] if len(sizes) == 1 else _PAPERS_BATCH
            if wanted not in sizes:
                raise InvalidInput("batch_size", batch_size, f"one of {', '.join(map(str, sizes))}")
            mine = [one for one in mine if one.batch_size == wanted]
        rounds = [one.iteration for one in mine if one.position is None and one.iteration is not None]
        last = max(rounds, default=None)
        return [one for one in mine if one.position is not None or one.iteration == last]

    def values(self, records: Iterable[AgentRunRecord]) -> Values:
        """Return the utility of each agent's queries, the mean over seeds."""
        gathered: dict[str, dict[str, list[float]]] = {}
        for one in records:
            utility = np.nan if one.utility is None else one.utility
            gathered.setdefault(one.agent, {}).setdefault(one.query_id, []).append(utility)
        return {
            agent: {query: float(np.mean(several)) for query, several in mine.items()}
            for agent, mine in gathered.items()
        }


def _findings(
    name: str, records: Sequence[AgentRunRecord], runs: _Runs, bootstrap: Bootstrap
) -> SystemFindings:
    values = runs.values(records)
    seeds = tuple(sorted({one.seed for one in records}))
    by_seed = []
    for seed in seeds:
        mine = runs.values(one for one in records if one.seed == seed)
        by_seed.append(_macro(mine))
    return SystemFindings(
        name,
        max((one.iteration for one in records if one.iteration is not None), default=None),
        next((one.batch_size for one in records if one.batch_size is not None), None),
        seeds,
        tuple(
            bootstrap.share(f"{name} {agent}", list(values[agent].values())) if agent in values else None
            for agent in runs.agents
        ),
        macro_interval(bootstrap, name, values),
        tuple(by_seed),
        tuple(sorted({one.reranker_version for one in records if one.reranker_version})),
    )


def _comparisons(
    values: Mapping[str, Values],
    records: Mapping[str, Sequence[AgentRunRecord]],
    runs: _Runs,
    bootstrap: Bootstrap,
) -> Iterable[SystemComparison]:
    """Compare every system with those before it in the table, for each agent and for all."""
    for second, first in combinations(runs.systems, 2):
        for agent in runs.agents:
            found = compare(
                bootstrap,
                f"utility of {agent}",
                (first, values[first].get(agent, {})),
                (second, values[second].get(agent, {})),
            )
            if found is not None:
                test = _right(records[first], records[second], agent)
                yield SystemComparison(agent, first, second, found.difference, found.p_value, test)
        pair = macro_difference(bootstrap, f"{first} {second}", values[first], values[second])
        if pair is not None:
            yield SystemComparison(MACRO, first, second, *pair, _right(records[first], records[second], None))


def _adjusted(comparisons: Sequence[SystemComparison]) -> tuple[SystemComparison, ...]:
    """Adjust the p-values of each agent's pairs of systems."""
    found = list(comparisons)
    for agent in dict.fromkeys(one.agent for one in comparisons):
        places = [place for place, one in enumerate(comparisons) if one.agent == agent]
        p_values = holm([comparisons[place].deciding for place in places])
        for place, p_value in zip(places, p_values.tolist(), strict=True):
            found[place] = replace(found[place], p_holm=p_value)
    return tuple(found)


def _right(
    first: Sequence[AgentRunRecord], second: Sequence[AgentRunRecord], agent: str | None
) -> McNemar | None:
    """Return McNemar's test of the first seed of each, for one agent or for all."""
    one, other = (_of_first_seed(records, agent) for records in (first, second))
    both = [key for key in one if key in other]
    pairs = [(one[key], other[key]) for key in both if one[key] is not None and other[key] is not None]
    if not pairs or {value for pair in pairs for value in pair} - {0.0, 1.0}:
        return None
    return mcnemar([left == 1.0 for left, _ in pairs], [right == 1.0 for _, right in pairs])


def _of_first_seed(
    records: Sequence[AgentRunRecord], agent: str | None
) -> dict[tuple[str, str], float | None]:
    seed = min((one.seed for one in records), default=0)
    return {
        (one.agent, one.query_id): one.utility
        for one in records
        if one.seed == seed and agent in (None, one.agent)
    }


def macro_interval(bootstrap: Bootstrap, name: str, values: Values) -> BootstrapInterval:
    """Return the mean over agents of their mean utility, with a percentile interval over queries.

    A query that several agents asked is drawn for all of them. A resample without any query of some agent is
    left out and counted.

    Args:
        bootstrap: how many resamples, at which level.
        name: what is estimated; its random numbers depend on it.
        values: utilities; ``nan`` is left out and counted.
    """
    sums, counts, undefined = _matrices(values)
    return _interval(bootstrap, _macro(values), _resampled(bootstrap, name, sums, counts), counts, undefined)


def macro_difference(
    bootstrap: Bootstrap, name: str, first: Values, second: Values
) -> tuple[BootstrapInterval, float] | None:
    """Return the mean over agents of the mean difference of two systems, and its two-sided p-value.

    On the queries where both are defined, as :func:`evenmesh_core.significance.paired_bootstrap` has it for
    one agent; None where there are none. With fewer than
    :data:`evenmesh_core.sparse_means.LEAST_DIFFERING` queries on which an agent's values differ there are no
    limits and no p-value, as for one agent: the bootstrap would find differences too often. Systems that
    never differ have p = 1.
    """
    differences = {
        agent: {
            query: value - second[agent][query]
            for query, value in mine.items()
            if query in second.get(agent, {}) and not np.isnan(value - second[agent][query])
        }
        for agent, mine in first.items()
    }
    differences = {agent: mine for agent, mine in differences.items() if mine}
    if not differences:
        return None
    sums, counts, undefined = _matrices(differences)
    value = _macro(differences)
    differing = len({query for mine in differences.values() for query, gap in mine.items() if gap})
    if differing < LEAST_DIFFERING:
        queries = sums.shape[1]
        interval = _interval(bootstrap, value, np.empty(0), counts, undefined)
        return replace(interval, missing=too_few(differing, queries)), np.nan if differing else 1.0
    means = _resampled(bootstrap, f"macro {name}", sums, counts)
    interval = _interval(bootstrap, value, means, counts, undefined)
    known = means[~np.isnan(means)]
    if not len(known):
        return interval, float("nan")
    as_far = int(np.count_nonzero(np.abs(known - value) >= abs(value) * (1 - 1e-12)))
    return interval, (1 + as_far) / (1 + len(known))


def _macro(values: Values) -> float:
    means = [np.mean(known) for mine in values.values() if (known := [v for v in mine.values() if v == v])]
    return float(np.mean(means)) if means else float("nan")


def _matrices(values: Values) -> tuple[FloatArray, FloatArray, int]:
    """Return sums and counts [agents, queries] of defined values, and the number of undefined ones."""
    place: dict[str, int] = {}
    for mine in values.values():
        for query in mine:
            place.setdefault(query, len(place))
    sums = np.zeros((len(values), len(place)))
    counts = np.zeros_like(sums)
    undefined = 0
    for row, mine in enumerate(values.values()):
        for query, value in mine.items():
            if np.isnan(value):
                undefined += 1
                continue
            sums[row, place[query]] += value
            counts[row, place[query]] += 1
    return sums, counts, undefined


def _resampled(bootstrap: Bootstrap, name: str, sums: FloatArray, counts: FloatArray) -> FloatArray:
    """Return the macro-average of each resample of queries; ``nan`` where an agent has no queries."""
    queries = sums.shape[1]
    if queries < 2:
        return np.empty(0)
    draws = np.random.default_rng([bootstrap.seed, crc32(name.encode())])
    weights = draws.multinomial(queries, np.full(queries, 1 / queries), size=bootstrap.num_resamples)
    totals, sizes = weights @ sums.T, weights @ counts.T
    with np.errstate(invalid="ignore"):
        means: FloatArray = (totals / np.where(sizes > 0, sizes, np.nan)).mean(axis=1)
    return means


def _interval(
    bootstrap: Bootstrap, value: float, means: FloatArray, counts: FloatArray, undefined: int
) -> BootstrapInterval:
    known = means[~np.isnan(means)]
    tail = (1 - bootstrap.level) / 2
    low, high = np.quantile(known, [tail, 1 - tail]) if len(known) else (np.nan, np.nan)
    return BootstrapInterval(
        value,
        float(low),
        float(high),
        bootstrap.level,
        "percentile",
        int((counts > 0).sum()),
        undefined,
        len(means) - len(known),
    )


def _rounds(runs: _Runs, bootstrap: Bootstrap) -> Iterable[Point]:
    for system in (OFFLINE, f"{OFFLINE}{WITHOUT_IDS}"):
        mine = runs.of(system)
        for number in sorted({one.iteration for one in mine if one.iteration is not None}):
            values = runs.values(one for one in mine if one.iteration == number)
            yield Point(system, number, macro_interval(bootstrap, f"{system} round {number}", values))


def _batches(runs: _Runs, bootstrap: Bootstrap) -> Iterable[Point]:
    mine = runs.of(ONLINE)
    for size in sorted({one.batch_size for one in mine if one.batch_size is not None}):
        values = runs.values(one for one in mine if one.batch_size == size)
        yield Point(ONLINE, size, macro_interval(bootstrap, f"batch size {size}", values))


def _thirds(
    chosen: Mapping[str, Sequence[AgentRunRecord]], runs: _Runs, bootstrap: Bootstrap
) -> Iterable[StreamThird]:
    """Compare the online system with one that does not learn, on its stream."""
    stream = [one for one in chosen.get(ONLINE, ()) if one.position is not None]
    reference = _frozen_system(chosen)
    if not stream or not reference:
        return
    frozen = runs.values(chosen[reference])
    learning = runs.values(stream)
    parts: dict[str, list[list[str]]] = {}
    for agent in runs.agents:
        places: dict[str, int] = {}
        for one in stream:
            if one.agent == agent and one.position is not None:
                places.setdefault(one.query_id, one.position)
        order = [query for query in sorted(places, key=places.__getitem__) if query in frozen.get(agent, {})]
        if len(order) >= THIRDS:
            parts[agent] = [[str(q) for q in part] for part in np.array_split(np.array(order), THIRDS)]
    for third in range(THIRDS):
        for agent, mine in parts.items():
            queries = mine[third]
            left = {query: learning[agent][query] for query in queries}
            right = {query: frozen[agent][query] for query in queries}
            found = compare(bootstrap, f"third {third} of {agent}", (ONLINE, left), (FROZEN, right))
            if found is not None:
                yield StreamThird(
                    agent,
                    third + 1,
                    len(queries),
                    bootstrap.mean(f"third {third} of {agent} {ONLINE}", list(left.values()), within=UNIT),
                    bootstrap.mean(f"third {third} of {agent} {FROZEN}", list(right.values()), within=UNIT),
                    found.difference,
                    found.p_value,
                )
        first = {agent: {q: learning[agent][q] for q in mine[third]} for agent, mine in parts.items()}
        second = {agent: {q: frozen[agent][q] for q in mine[third]} for agent, mine in parts.items()}
        pair = macro_difference(bootstrap, f"third {third}", first, second)
        if pair is not None:
            yield StreamThird(
                MACRO,
                third + 1,
                sum(len(mine) for mine in first.values()),
                macro_interval(bootstrap, f"third {third} {ONLINE}", first),
                macro_interval(bootstrap, f"third {third} {FROZEN}", second),
                *pair,
            )


def _frozen_system(chosen: Mapping[str, Sequence[AgentRunRecord]]) -> str:
    return next((name for name in (FROZEN, OFFLINE) if name in chosen), "")


def _agreements(
    chosen: Mapping[str, Sequence[AgentRunRecord]], depth: int, bootstrap: Bootstrap
) -> Iterable[ListAgreement]:
    for system in (OFFLINE, ONLINE):
        lists: dict[str, dict[tuple[str, int], list[str]]] = {}
        for one in chosen.get(system, ()):
            lists.setdefault(one.agent, {})[(one.query_id, one.seed)] = one.ranking[:depth]
        for first, second in combinations(lists, 2):
            shared = [key for key in lists[first] if key in lists[second]]
            if not shared:
                continue
            taus: dict[str, list[float]] = {}
            shares: dict[str, list[float]] = {}
            for key in shared:
                one_list, other = lists[first][key], lists[second][key]
                taus.setdefault(key[0], []).append(kendall_tau(one_list, other))
                shares.setdefault(key[0], []).append(jaccard(one_list, other))
            label = f"{system} {first} {second}"
            yield ListAgreement(
                system,
                first,
                second,
                bootstrap.mean(
                    f"tau {label}", [float(np.mean(several)) for several in taus.values()], within=(-1, 1)
                ),
                bootstrap.mean(
                    f"jaccard {label}", [float(np.mean(several)) for several in shares.values()], within=UNIT
                ),
            )
