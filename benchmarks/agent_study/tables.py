"""The tables of docs/studies/agents.md, from its plan and the stored records; a test compares them.

``python -m benchmarks.agent_study.tables`` computes the CSV files from the records and writes the tables
into the page; some seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import compared_agents, csv_rows, parquet_rows
from benchmarks.agent_study import records
from benchmarks.agent_study.answering import HYBRID
from benchmarks.agent_study.learning import SEEDS
from benchmarks.agent_study.ranking import SHALLOW
from benchmarks.agent_study.records import (
    ASKED,
    BLENDED,
    FUSED,
    LEARNED,
    LISTWISE,
    OUT,
    SHARED,
    START,
    WITHOUT_IDS,
)
from benchmarks.agent_study.sets import AGENTS
from benchmarks.compared_agents import MEAN, verdict, verdict_of_each
from benchmarks.page import fill, table
from benchmarks.shown import interval, three, two
from evenmesh_core.arrays import FloatArray
from evenmesh_lab.files.plans import described, read_plan

FILES: Final = (
    "systems",
    "claims",
    "shallow-systems",
    "shallow-claims",
    "in-hybrid-systems",
    "in-hybrid-claims",
)
BM25: Final = "bm25"
ORACLE: Final = "oracle"
_DEPTHS: Final = {"": None, "shallow-": SHALLOW}
"""Candidates that are ranked, None for all, by what files begin with."""
_OF_EACH: Final = {"L4": "L1", "L9": "L7"}
"""Claims about every single agent, by the claim about their mean."""
_NAMES: Final = tuple(one.name for one in AGENTS)

_SYSTEMS: Final = (
    BM25,
    START,
    ASKED,
    LEARNED,
    WITHOUT_IDS,
    BLENDED,
    LISTWISE,
    SHARED,
    FUSED,
    ORACLE,
)
_DIFFERENCES: Final = {
    START: "start − BM25",
    "L1": "learned − start",
    "L2": "learned − BM25",
    "L3": "learned − without-ids",
    "L5": "listwise − start",
    "L6": "listwise − learned",
    "L7": "fused − start",
    "L8": "fused − shared",
    FUSED: "fused − BM25",
    ASKED: "fused − asked",
    SHARED: "shared − start",
    BLENDED: "blended − start",
    ORACLE: "oracle − BM25",
}
"""What a claim, or a comparison that is none, is the difference of."""
_IN_HYBRID: Final = {
    "L10": "fused − asked",
    START: "fused − start",
    HYBRID: "fused − hybrid",
    ASKED: "asked − start",
}

Values = Mapping[str, FloatArray]
"""A value of every query by agent; queries in the order of their ids."""


def stored(depth: int | None = None) -> tuple[dict[str, dict[int, Values]], dict[str, dict[int, Values]]]:
    """Return utilities and τ of every system that was asked by seed, 0 where nothing is drawn.

    Args:
        depth: candidates that were ranked; None: all.
    """
    worth = {(row["agent"], row["query"]): row["utilities"] for row in parquet_rows.read(records.WORTH)}
    keys = {name: sorted(key for key in worth if key[0] == name) for name in _NAMES}
    utilities: dict[str, dict[int, Values]] = {
        BM25: {0: {name: np.array([worth[key][0] for key in keys[name]]) for name in _NAMES}},
        ORACLE: {0: {name: np.array([max(worth[key][:depth]) for key in keys[name]]) for name in _NAMES}},
    }
    taus: dict[str, dict[int, Values]] = {}
    trained = ((name, SEEDS) for name in (LEARNED, WITHOUT_IDS, BLENDED, LISTWISE, FUSED, SHARED))
    for system, seeds in ((START, (0,)), (ASKED, (0,)), *trained):
        for seed in seeds:
            rows = {
                (row["agent"], row["query"]): row
                for row in parquet_rows.read(records.path(system, seed or None, depth))
            }
            if rows:
                utilities.setdefault(system, {})[seed] = {
                    name: np.array([worth[key][rows[key]["first"]] for key in keys[name]]) for name in _NAMES
                }
                taus.setdefault(system, {})[seed] = {
                    name: np.array([rows[key]["tau"] for key in keys[name]]) for name in _NAMES
                }
    return utilities, taus


def summarize(to: Path = OUT) -> None:
    """Compute the CSV files from the records, and write them into a folder."""
    for prefix, depth in _DEPTHS.items():
        _summarize(to, prefix, *stored(depth))
    found = stored_in_hybrid()
    csv_rows.write(to / "in-hybrid-systems.csv", _systems(found, {}, records.IN_HYBRID))
    csv_rows.write(
        to / "in-hybrid-claims.csv",
        [
            row
            for name, other in (("L10", ASKED), (START, START), (HYBRID, HYBRID))
            for row in compared(name, found[FUSED], found[other])
        ]
        + compared(ASKED, found[ASKED], found[START]),
    )


def stored_in_hybrid() -> dict[str, dict[int, Values]]:
    """Return utilities of every system with the candidates of an ask without options, by seed."""
    found: dict[str, dict[int, Values]] = {name: {} for name in records.IN_HYBRID}
    for seed in SEEDS:
        rows = sorted(
            parquet_rows.read(records.in_hybrid(seed)), key=lambda row: (row["agent"], row["query"])
        )
        for system in records.IN_HYBRID if rows else ():
            # Only what was learned differs between seeds.
            found[system][seed if system == FUSED else 0] = {
                name: np.array([row[system] for row in rows if row["agent"] == name]) for name in _NAMES
            }
    return found


def _summarize(
    to: Path,
    prefix: str,
    utilities: Mapping[str, Mapping[int, Values]],
    taus: Mapping[str, Mapping[int, Values]],
) -> None:
    csv_rows.write(to / f"{prefix}systems.csv", _systems(utilities, taus, _SYSTEMS))
    csv_rows.write(to / f"{prefix}claims.csv", [row for claim in _claims(utilities) for row in claim])


def _systems(
    utilities: Mapping[str, Mapping[int, Values]],
    taus: Mapping[str, Mapping[int, Values]],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    systems: list[dict[str, Any]] = []
    for system in names:
        if system not in utilities:
            continue
        means = {name: float(values.mean()) for name, values in _over_seeds(utilities[system]).items()}
        row: dict[str, Any] = {
            "system": system,
            "seeds": len(utilities[system]),
            **means,
            MEAN: np.mean(list(means.values())),
        }
        row["by_seed"] = " ".join(f"{_mean(one):.4f}" for one in utilities[system].values())
        row["tau"] = _mean(_over_seeds(taus[system])) if system in taus else ""
        systems.append(row)
    return systems


def tables(folder: Path = OUT) -> dict[str, str]:
    """Return every table of the page by its name there."""
    systems, claims, shallow, shallow_claims, in_hybrid, in_hybrid_claims = (
        csv_rows.read(folder / f"{name}.csv") for name in FILES
    )
    return {
        "plan": described(read_plan(OUT / "plan.toml"), _asked(claims)),
        "systems": table([_system(row) for row in systems]),
        "claims": table(_shown([*claims, *in_hybrid_claims])),
        "agents": table(_by_agent(claims, _DIFFERENCES)),
        "shallow": table([_system(row) for row in shallow]),
        "differences": table(_by_agent(shallow_claims, _DIFFERENCES)),
        "fusions": table(_chosen(csv_rows.read(OUT / "fusions.csv"))),
        "hybrid": table([_system(row) for row in in_hybrid]),
        "hybrid-differences": table(_by_agent(in_hybrid_claims, _IN_HYBRID)),
    }


def compared(name: str, one: Mapping[int, Values], other: Mapping[int, Values]) -> list[dict[str, Any]]:
    """Return the paired differences of two systems, of each agent and of their mean.

    Systems of which both were drawn are compared by the seeds that both have.
    """
    seeds = sorted(one.keys() & other.keys()) or sorted(one)
    mine = _over_seeds({seed: one[seed] for seed in seeds})
    theirs = _over_seeds({seed: other.get(seed, other.get(0, {})) for seed in seeds})
    differences = {agent: mine[agent] - theirs[agent] for agent in _NAMES}
    return compared_agents.compared(name, differences, seeds=len(seeds), together=len(_NAMES))


def _claims(utilities: Mapping[str, Mapping[int, Values]]) -> list[list[dict[str, Any]]]:
    found = []
    for name, one, other in (
        ("L1", LEARNED, START),
        ("L2", LEARNED, BM25),
        ("L3", LEARNED, WITHOUT_IDS),
        ("L5", LISTWISE, START),
        ("L6", LISTWISE, LEARNED),
        ("L7", FUSED, START),
        ("L8", FUSED, SHARED),
        (FUSED, FUSED, BM25),
        (ASKED, FUSED, ASKED),
        (SHARED, SHARED, START),
        (BLENDED, BLENDED, START),
        (START, START, BM25),
        (ORACLE, ORACLE, BM25),
    ):
        if one in utilities and other in utilities:
            found.append(compared(name, utilities[one], utilities[other]))
    return found


def _over_seeds(of_seed: Mapping[int, Values]) -> dict[str, FloatArray]:
    return {name: np.mean([one[name] for one in of_seed.values()], axis=0) for name in _NAMES}


def _mean(values: Values) -> float:
    return float(np.mean([one.mean() for one in values.values()]))


def _asked(claims: Sequence[Mapping[str, str]]) -> dict[str, int]:
    return {row["agent"].split("/")[0]: int(row["queries"]) for row in claims if row["agent"] != MEAN}


def _system(row: Mapping[str, str]) -> dict[str, str]:
    return {
        "": row["system"],
        "seeds": "" if row["system"] in (BM25, HYBRID, START, ASKED, ORACLE) else row["seeds"],
        **{name: three(row[name]) for name in _NAMES},
        "mean of agents": f"**{three(row[MEAN])}**",
        "of each seed": " ".join(three(one) for one in row["by_seed"].split())
        if " " in row["by_seed"]
        else "",
        "τ to start": two(row["tau"]) if row["tau"] and row["system"] != START else "",
    }


def _chosen(fusions: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the weights that each seed's feedback chose for an agent."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in fusions:
        key = (row["first_stage"], row["seed"])
        of_seed = found.setdefault(key, {"first stage": row["first_stage"], "seed": row["seed"]})
        of_seed[row["agent"]] = f"{float(row['weight']):g}, {float(row['neighbors']):g}"
    return list(found.values())


def _shown(claims: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    found = []
    for one in read_plan(OUT / "plan.toml").hypotheses:
        rows = [row for row in claims if row["claim"] == _OF_EACH.get(one.name, one.name)]
        means = [row for row in rows if row["agent"] == MEAN]
        by_rule = verdict_of_each if one.name in _OF_EACH else verdict
        found.append(
            {
                "": one.name,
                "claim": one.claim.split(":", 1)[0],
                "seeds": means[0]["seeds"] if means else "0",
                "difference": interval(means[0]) if means and one.name not in _OF_EACH else "",
                "verdict": by_rule(rows) if rows else "not asked yet",
            }
        )
    return found


def _by_agent(claims: Sequence[Mapping[str, str]], names: Mapping[str, str]) -> list[dict[str, str]]:
    found = []
    for claim, name in names.items():
        rows = {row["agent"]: row for row in claims if row["claim"] == claim}
        if rows:
            cells = {agent: interval(rows[agent]) for agent in _NAMES}
            found.append({"": name, **cells, "mean of agents": f"**{interval(rows[MEAN])}**"})
    return found


def main() -> None:
    """Compute the numbers, and write the tables into the page."""
    summarize()
    fill(OUT.with_suffix(".md"), tables())


if __name__ == "__main__":
    main()
