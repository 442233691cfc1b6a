"""The tables of docs/studies/online.md, from its plan and the stored records; a test compares them.

``python -m benchmarks.online_study.tables`` computes the CSV files from the records and writes the tables
into the page; some seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np

from benchmarks import compared_agents, csv_rows
from benchmarks.compared_agents import MEAN, verdict, verdict_of_each
from benchmarks.online_study import records
from benchmarks.online_study.queries import AGENTS
from benchmarks.online_study.records import ALWAYS, BY_ORDER, FROZEN, JUDGED_ALL, OUT
from benchmarks.online_study.replaying import BATCH
from benchmarks.page import fill, table
from benchmarks.shown import interval, three
from evenmesh_core.arrays import FloatArray
from evenmesh_lab.files.plans import described, read_plan
from evenmesh_training.online.training_examples import Learns

FILES: Final = ("systems", "claims")
LEARNED: Final[tuple[str, ...]] = (*get_args(Learns), JUDGED_ALL, ALWAYS, BY_ORDER)
_CLAIMS: Final = {"O1": "model", "O2": "fusion", "O4": ALWAYS}
"""What is compared with frozen, by claim."""
_OF_EACH: Final = "O3"
_TESTED: Final = ("O1", "O2")
_TOGETHER: Final = len(_TESTED) * len(AGENTS)

Rows = Sequence[Mapping[str, Any]]


def stored(folder: Path = OUT) -> dict[str, Rows]:
    """Return the rows of every system that was replayed."""
    found = {system: records.read(system, folder) for system in (FROZEN, *LEARNED)}
    return {system: rows for system, rows in found.items() if rows}


def differences(learned: Rows, frozen: Rows, *, since: int | float) -> dict[str, FloatArray]:
    """Return the paired differences of each agent, in the order of the ids of its queries.

    Args:
        learned: rows of what learns.
        frozen: rows of what does not, of these seeds at least.
        since: first position that counts, from 0; a fraction is one of the stream.
    """
    before = {(row["agent"], row["seed"], row["query"]): row["utility"] for row in frozen}
    lengths: dict[tuple[str, int], int] = defaultdict(int)
    for row in learned:
        lengths[row["agent"], row["seed"]] += 1
    values: dict[str, dict[str, list[float]]] = {agent: defaultdict(list) for agent in AGENTS}
    for row in learned:
        length = lengths[row["agent"], row["seed"]]
        first = since if isinstance(since, int) else length - round((1 - since) * length)
        if row["position"] >= first:
            gain = row["utility"] - before[row["agent"], row["seed"], row["query"]]
            values[row["agent"]][row["query"]].append(gain)
    return {
        agent: np.array([np.mean(by_query[query]) for query in sorted(by_query)])
        for agent, by_query in values.items()
        if by_query
    }


def summarize(to: Path = OUT) -> None:
    """Compute the CSV files from the records, and write them into a folder."""
    found = stored()
    common = set.intersection(*({row["seed"] for row in rows} for rows in found.values()))
    csv_rows.write(to / "systems.csv", [_system(name, rows, common) for name, rows in found.items()])
    claims = []
    names = {system: claim for claim, system in _CLAIMS.items()}
    for system in (one for one in LEARNED if one in found):
        seeds = len({row["seed"] for row in found[system]})
        for since, prefix in ((BATCH, ""), (2 / 3, "last third of ")):
            gains = differences(found[system], found[FROZEN], since=since)
            claim = prefix + names.get(system, system)
            rows = compared_agents.compared(claim, gains, seeds=seeds, together=_TOGETHER)
            claims += [row for row in rows if row["agent"] != MEAN or {*gains} == {*AGENTS}]
    csv_rows.write(to / "claims.csv", claims)


def tables(folder: Path = OUT) -> dict[str, str]:
    """Return every table of the page by its name there."""
    systems, claims = (csv_rows.read(folder / f"{name}.csv") for name in FILES)
    return {
        "plan": described(read_plan(OUT / "plan.toml"), _asked(claims)),
        "systems": table([_shown_system(row) for row in systems]),
        "claims": table(_verdicts(claims)),
        "agents": table(_by_agent(claims)),
        "headroom": table([_shown_headroom(row) for row in csv_rows.read(OUT / "headroom.csv")]),
    }


def _system(name: str, rows: Rows, common: Collection[int]) -> dict[str, Any]:
    """Return a system's row: utilities of the seeds that all systems have, and the rounds of all seeds."""
    later = [row for row in rows if row["position"] >= BATCH and row["seed"] in common]
    values = {agent: [row["utility"] for row in later if row["agent"] == agent] for agent in AGENTS}
    means = {agent: float(np.mean(found)) for agent, found in values.items() if found}
    last = {(row["agent"], row["seed"]): row["rounds"] for row in rows}
    return {
        "system": name,
        "seeds": len(common),
        **means,
        **({MEAN: float(np.mean(list(means.values())))} if len(means) == len(AGENTS) else {}),
        "streams": len(last),
        "promoted": sum(last.values()),
    }


def _shown_system(row: Mapping[str, str]) -> dict[str, str]:
    return {
        "": row["system"],
        "seeds": row["seeds"],
        **{agent: three(row[agent]) if row[agent] else "" for agent in AGENTS},
        "mean of agents": f"**{three(row[MEAN])}**" if row[MEAN] else "",
        "promoted rounds, streams": f"{row['promoted']}, {row['streams']}",
    }


def _shown_headroom(row: Mapping[str, str]) -> dict[str, str]:
    names = ("first stage", "model", "frozen", "best fusion", "oracle")
    weights = {"its weights": f"{float(row['weight']):g}, {float(row['neighbors']):g}"}
    return {
        "": row["agent"],
        "queries": row["queries"],
        **{name: three(row[name]) for name in names},
        **weights,
    }


def _asked(claims: Sequence[Mapping[str, str]]) -> dict[str, int]:
    return {row["agent"]: int(row["queries"]) for row in claims if row["claim"] == "O2"}


def _verdicts(claims: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    plan = {one.name: one.claim for one in read_plan(OUT / "plan.toml").hypotheses}
    found = []
    for claim in _CLAIMS:
        rows = [row for row in claims if row["claim"] == claim and row["agent"] == MEAN]
        said = verdict(rows) if rows else "not asked yet"
        difference = interval(rows[0]) if rows else ""
        found.append({"": claim, "claim": plan[claim], "verdict": said, "mean of agents": difference})
    both = [row for row in claims if row["claim"] in _TESTED]
    asked = {row["claim"] for row in both} == {*_TESTED}
    said = verdict_of_each(both) if asked else "not asked yet"
    found.append({"": _OF_EACH, "claim": plan[_OF_EACH], "verdict": said, "mean of agents": ""})
    return sorted(found, key=lambda row: row[""])


def _by_agent(claims: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    found = []
    for claim in dict.fromkeys(row["claim"] for row in claims):
        rows = {row["agent"]: row for row in claims if row["claim"] == claim}
        *prefix, last = claim.split(" of ")
        system = _CLAIMS.get(last, last)
        found.append(
            {
                "": f"{system} − frozen",
                "queries": prefix[0] if prefix else "after the first round",
                "seeds": next(iter(rows.values()))["seeds"],
                **{agent: interval(rows[agent]) if agent in rows else "" for agent in AGENTS},
                "mean of agents": f"**{interval(rows[MEAN])}**" if MEAN in rows else "",
            }
        )
    return found


def main() -> None:
    """Compute the numbers, and write the tables into the page."""
    summarize()
    fill(OUT.with_suffix(".md"), tables())


if __name__ == "__main__":
    main()
