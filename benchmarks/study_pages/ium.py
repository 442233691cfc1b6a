"""docs/studies/ium.md, from the tables of its run."""

from __future__ import annotations

from typing import Final

from benchmarks import ium_headroom
from benchmarks.page import table
from benchmarks.study_pages.cells import STUDIES, fixed, interval, plan_of, read
from benchmarks.study_pages.scores import score

FOLDER: Final = STUDIES / "ium"
SYSTEMS: Final = {
    "bm25": "BM25",
    "dense": "dense",
    "per_agent": "a reranker per agent",
    "per_dataset": "a reranker per data set",
    "urag": "uRAG",
    "offline_ium_without_ids": "offline IUM, without agent tokens",
    "offline_ium": "offline IUM",
    "online_ium": "online IUM, b = 25",
}


def refresh() -> None:
    """Compute score intervals, adjusted p-values and what an oracle gains again from the stored rows."""
    ium_headroom.summarize()
    for passages in ("own", "one"):
        score(FOLDER / f"{passages}-systems.csv", shares=tuple(SYSTEMS))
        score(FOLDER / f"{passages}-comparisons.csv", family=("agent",))


def tables() -> dict[str, str]:
    """Return the tables of the page by their names there."""
    systems = {one: table(_systems(one)) for one in ("own", "one")}
    return {"plan": plan_of(FOLDER), "headroom": table(ium_headroom.cells()), **systems}


def _systems(passages: str) -> list[dict[str, str]]:
    *agents, everyone = read(FOLDER / f"{passages}-systems.csv")
    found = []
    for system, name in SYSTEMS.items():
        if system in everyone:
            value, _, ends = interval(everyone, system, 3).partition(" ")
            line = {"": name} | {row["agent"]: fixed(row[system], 2) for row in agents}
            found.append(line | {"mean of agents": f"**{value}** {ends}"})
    return found
