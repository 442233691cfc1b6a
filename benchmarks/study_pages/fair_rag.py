"""docs/studies/fair-rag.md, from one row for each query, system and α."""

from __future__ import annotations

from typing import Final

import numpy as np

from benchmarks.coverage import read_rows
from benchmarks.page import table
from benchmarks.study_pages.cells import STUDIES, Row, fixed, interval, plan_of, read, where
from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.reports.files import write_csv
from evenmesh_lab.studies import Bootstrap
from evenmesh_lab.studies.utility import study_of

FOLDER: Final = STUDIES / "fair-rag"
K: Final = 5
"""Passages that the generator was given."""


def refresh() -> None:
    """Compute the tables beside the rows again: summary, levels, curves, areas and comparisons."""
    rows = read_rows(FOLDER / "utility.csv")
    write_csv(study_of(rows, k=K, longest=K).tables(), FOLDER / "utility.csv")


def tables() -> dict[str, str]:
    """Return the tables of the page by their names there."""
    return {
        "plan": plan_of(FOLDER),
        "seen": table(_seen(read(FOLDER / "utility-seen.csv"))),
        "price": table(_prices()),
    }


def price(system: str, alpha: str, gained: dict[str, float]) -> BootstrapInterval:
    """Return the mean difference of expected utility from no sampling, as a report computes it."""
    values = np.array(list(gained.values()))
    name = f"price {system} {alpha}"
    return Bootstrap().paired(name, values, np.zeros(len(values))).difference


def gains() -> dict[tuple[str, str], dict[str, float]]:
    """Return expected utility minus that without sampling by query, of each system and α."""
    rows = [row for row in read(FOLDER / "utility.csv") if row["eu"]]
    utility = {(row["query_id"], row["system"], row["alpha"]): float(row["eu"]) for row in rows}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for (query, system, alpha), value in utility.items():
        if alpha and (query, system, "") in utility:
            found.setdefault((system, alpha), {})[query] = value - utility[query, system, ""]
    return dict(sorted(found.items(), key=lambda one: (one[0][0], float(one[0][1]))))


def _prices() -> list[dict[str, str]]:
    summary = read(FOLDER / "utility-summary.csv")
    return [
        {
            "system": system,
            "α": alpha,
            "EE-D, of its bound": fixed(where(summary, system=system, alpha=alpha)["ee_d_norm"], 2),
            "EU minus that without sampling": shown(price(system, alpha, gained), 3),
            "questions higher": str(sum(one > 1e-9 for one in gained.values())),
            "lower": str(sum(one < -1e-9 for one in gained.values())),
        }
        for (system, alpha), gained in gains().items()
    ]


def _seen(rows: list[Row]) -> list[dict[str, str]]:
    parts = {part: [row for row in rows if row["part"] == part] for part in ("unseen", "seen")}
    sizes = {part: mine[0]["questions"] for part, mine in parts.items()}
    return [
        {
            "system": unseen["system"],
            "α": unseen["alpha"],
            f"EU minus that without sampling, {sizes['unseen']} unseen questions": interval(
                unseen, "difference", 3
            ),
            f"{sizes['seen']} seen": interval(seen, "difference", 3),
        }
        for unseen, seen in zip(parts["unseen"], parts["seen"], strict=True)
    ]


def shown(found: BootstrapInterval, digits: int) -> str:
    """Return a value with its interval, or that there is none."""
    ends = {"x": found.value, "x_low": found.low, "x_high": found.high}
    return interval({name: "" if np.isnan(one) else str(one) for name, one in ends.items()}, "x", digits)
