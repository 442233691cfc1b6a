"""What an oracle's ranking would give agents, from a run of ``evenmesh train ium`` with BM25 and the oracle.

``python -m benchmarks.ium_headroom AGENTS.toml RUN`` writes a row for each agent and query beside the page of
the study of agents: the utility of what BM25 and the oracle show, and of the first passage of each alone.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import csv_rows
from benchmarks.group_means import mean_of_means
from benchmarks.study_pages import cells as cells_of
from evenmesh_core.arrays import FloatArray
from evenmesh_lab.files.agent_runs import BM25, ORACLE, read_agent_runs
from evenmesh_training.ium import plan as plans
from evenmesh_training.ium import session
from evenmesh_training.ium.offline import RUNS
from evenmesh_training.ium.plan import AgentTasks
from evenmesh_training.ium.result_cache import ResultCache

ROWS: Final = cells_of.STUDIES / "ium" / "headroom.csv"
MEANS: Final = ROWS.with_name("headroom-means.csv")
SYSTEMS: Final = (BM25, ORACLE)
GAIN: Final = "gain"
ONE: Final = "_one"
WAYS: Final = {"": "", ONE: ", one passage"}
"""What an agent reads, the passages that it takes or one: by what columns end with, and headings."""
_BEAMS: Final = 1


def rows(plan: AgentTasks, run: Path) -> list[dict[str, Any]]:
    """Return a row for each agent and query: ``agent``, ``query``, and utilities by system."""
    of_agent = {one.name: one for one in plan.agents}
    tasks = {one.id: one for one in plan.tasks}
    found: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    with ResultCache(run / session.RESULTS) as cache:
        for record in read_agent_runs([run / RUNS]):
            if record.system not in SYSTEMS:
                continue
            agent, task = of_agent[record.agent], tasks[record.query_id]
            row = found[record.agent, record.query_id]
            row[record.system] = record.utility or 0.0
            # Every candidate alone was asked for when the oracle ranked.
            alone = cache.answer(f"{agent.writer} {_BEAMS}", task.question, record.ranking[:1])
            text = None if alone is None else alone[0]
            row[record.system + ONE] = 0.0 if text is None else agent.utility_of(text, task.answers)
    return [{"agent": agent, "query": query} | row for (agent, query), row in found.items()]


def summarize() -> None:
    """Write what the oracle gains for each agent, and for their mean, from the row of each query."""
    rows = cells_of.read(ROWS)
    found: list[dict[str, object]] = []
    gains: dict[str, list[FloatArray]] = {suffix: [] for suffix in WAYS}
    mean: dict[str, object] = {"agent": "mean of agents", "queries": len(rows)}
    for agent in dict.fromkeys(row["agent"] for row in rows):
        mine = [row for row in rows if row["agent"] == agent]
        line: dict[str, object] = {"agent": agent, "queries": len(mine)}
        for suffix in WAYS:
            first, second = (np.array([float(row[name + suffix]) for row in mine]) for name in SYSTEMS)
            gains[suffix].append(second - first)
            means = (first.mean(), second.mean(), second.mean() - first.mean())
            line |= {name + suffix: one for name, one in zip((*SYSTEMS, GAIN), means, strict=True)}
        found.append(line)
    for suffix in WAYS:
        for name in SYSTEMS:
            mean[name + suffix] = np.mean([line[name + suffix] for line in found])
        gain = GAIN + suffix
        mean[gain], mean[f"{gain}_low"], mean[f"{gain}_high"] = mean_of_means(gains[suffix])
    cells_of.write(MEANS, [{**dict.fromkeys(mean, ""), **line} for line in (*found, mean)])


def cells() -> list[dict[str, str]]:
    """Return the rows of the page's table."""
    found = []
    for row in cells_of.read(MEANS):
        line = {"agent": row["agent"], "queries": row["queries"]}
        for suffix, way in WAYS.items():
            line |= {name + way: cells_of.fixed(row[name + suffix], 3) for name in SYSTEMS}
            gain = GAIN + suffix
            shown = cells_of.interval(row, gain, 3) if row[f"{gain}_low"] else cells_of.fixed(row[gain], 3)
            line[GAIN + way] = shown
        found.append(line)
    return found


def main() -> None:
    """Write the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ium_headroom", description=__doc__)
    parser.add_argument("agents", type=Path)
    parser.add_argument("run", type=Path)
    given = parser.parse_args()
    csv_rows.write(ROWS, rows(plans.load(given.agents), given.run))


if __name__ == "__main__":
    main()
