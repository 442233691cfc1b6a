"""Statistics of utility labels: how many passages are useful, and how much they gain.

Source: Kim & Diaz 2025, §3.1, algorithm 1, appendix J.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from evenmesh_core.intervals import BootstrapInterval
from evenmesh_lab.files.records import GainRecord
from evenmesh_lab.studies.tables import Column, Table, text
from evenmesh_lab.studies.uncertainty import UNIT, UPWARD, Bootstrap


def table(gains: Mapping[str, Sequence[GainRecord]], bootstrap: Bootstrap | None = None) -> Table:
    """Return one row for each model: means over queries with their intervals.

    Args:
        gains: of each model.
        bootstrap: how intervals are computed.
    """
    settings = bootstrap or Bootstrap()
    return Table(
        "labels",
        "Utility labels",
        (
            text("model", "model"),
            Column("queries", "queries"),
            Column("passages", "passages of a query"),
            Column("useful", "useful of them"),
            Column("several", "queries with two or more"),
            Column("baseline", "utility without passages"),
            Column("best", "utility with the best one"),
            Column("unknown", "not answered"),
        ),
        tuple(_row(model, found, settings) for model, found in gains.items()),
        note="A passage is useful where the answer from it alone is better than the answer without any.",
    )


def _row(
    model: str, gains: Sequence[GainRecord], bootstrap: Bootstrap
) -> tuple[str | int | BootstrapInterval, ...]:
    queries: dict[str, list[GainRecord]] = {}
    for one in gains:
        queries.setdefault(one.query_id, []).append(one)
    useful = [sum(one.useful is True for one in found) for found in queries.values()]
    best = [
        max((one.utility for one in found if one.utility is not None), default=float("nan"))
        for found in queries.values()
    ]
    baselines = [found[0].baseline for found in queries.values()]
    # LaMP-3's utilities reach 4.
    within = UPWARD if np.nanmax([*baselines, *best]) > 1 else UNIT
    return (
        model,
        len(queries),
        bootstrap.mean(f"passages {model}", [len(found) for found in queries.values()], within=UPWARD),
        bootstrap.mean(f"useful {model}", useful, within=UPWARD),
        sum(count >= 2 for count in useful),
        bootstrap.mean(f"baseline {model}", baselines, within=within),
        bootstrap.mean(f"best {model}", best, within=within),
        sum(one.utility is None for one in gains),
    )
