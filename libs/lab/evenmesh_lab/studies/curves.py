"""Curves: how quality and utility change with disparity, over queries and fairness dials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenmesh_core.intervals import BootstrapInterval, TradeoffIntervals
from evenmesh_lab.studies.uncertainty import Bootstrap


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """Means over queries of one system at one α."""

    alpha: float | None
    x: BootstrapInterval
    y: BootstrapInterval


@dataclass(frozen=True, slots=True)
class Curve:
    """One system's curve."""

    name: str
    """"disparity-quality", "disparity-utility" or "quality-utility"."""
    system: str
    points: tuple[CurvePoint, ...]
    """By rising α, the deterministic system last."""
    tradeoff: TradeoffIntervals
    """Slope and area over the points of all queries."""


def curve(
    name: str,
    system: str,
    points: Sequence[tuple[str, float | None, float, float]],
    bootstrap: Bootstrap,
) -> Curve | None:
    """Return one system's curve; None where no point has both values.

    Args:
        name: the curve's name.
        system: the system's.
        points: query, α, x and y, each in [0, 1] or ``nan``.
        bootstrap: how intervals are computed.
    """
    xs = np.array([x for _, _, x, _ in points], dtype=np.float64)
    ys = np.array([y for _, _, _, y in points], dtype=np.float64)
    defined = ~(np.isnan(xs) | np.isnan(ys))
    if not defined.any():
        return None
    alphas = np.array([np.inf if alpha is None else alpha for _, alpha, _, _ in points])
    means = []
    for dial in np.unique(alphas[defined]):
        here = defined & (alphas == dial)
        label = f"{name} {system} {dial:g}"
        means.append(
            CurvePoint(
                None if np.isinf(dial) else float(dial),
                bootstrap.mean(f"{label} x", xs[here]),
                bootstrap.mean(f"{label} y", ys[here]),
            )
        )
    fit = bootstrap.tradeoff(f"{name} {system}", [query for query, *_ in points], xs, ys)
    return Curve(name, system, tuple(means), fit)


def curves_of(
    rows: Sequence[Any], pairs: Iterable[tuple[str, str, str]], bootstrap: Bootstrap
) -> tuple[Curve, ...]:
    """Return the curves of each system; ``pairs``: names, and two attributes of the rows of queries."""
    found = [
        curve(
            name,
            system,
            [
                (row.query_id, row.alpha, getattr(row, x), getattr(row, y))
                for row in rows
                if row.system == system
            ],
            bootstrap,
        )
        for name, x, y in pairs
        for system in dict.fromkeys(row.system for row in rows)
    ]
    return tuple(one for one in found if one is not None)
