"""Curves: how quality and utility change with disparity, over queries and fairness dials."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenmesh_core.intervals import BootstrapInterval, CurvePoints, TradeoffIntervals
from evenmesh_lab.studies.uncertainty import UNIT, Bootstrap


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
    """Slope and area over the points of all queries; the curve joins the averages of each α."""


@dataclass(frozen=True, slots=True)
class CurveArea:
    """The area under one system's curve over the range that all systems cover."""

    name: str
    """As :class:`Curve`."""
    system: str
    low: float
    """Lower end of the range, ``nan`` where the systems share none."""
    high: float
    """Upper end of the range."""
    area: BootstrapInterval
    """Mean height of the curve there."""
    difference: BootstrapInterval | None
    """The first system's minus this one's, over the same queries; None for the first."""


Point = tuple[str, float | None, float, float]
"""Query, α, x and y of one query at one α; x and y are in [0, 1] or ``nan``."""


def curve(name: str, system: str, points: Sequence[Point], bootstrap: Bootstrap) -> Curve | None:
    """Return one system's curve; None where no point has both values.

    Args:
        name: the curve's name.
        system: the system's.
        points: the system's, of all queries.
        bootstrap: how intervals are computed.
    """
    known = [point for point in points if not np.isnan(point[2] + point[3])]
    if not known:
        return None
    means = []
    for dial in sorted({_dial(alpha) for _, alpha, _, _ in known}):
        label = f"{name} {system} {dial:g}"
        here = [(x, y) for _, alpha, x, y in known if _dial(alpha) == dial]
        means.append(
            CurvePoint(
                None if np.isinf(dial) else dial,
                bootstrap.mean(f"{label} x", [x for x, _ in here], within=UNIT),
                bootstrap.mean(f"{label} y", [y for _, y in here], within=UNIT),
            )
        )
    return Curve(name, system, tuple(means), bootstrap.tradeoff(f"{name} {system}", _curve_points(points)))


def curves_of(
    rows: Sequence[Any], pairs: Iterable[tuple[str, str, str]], bootstrap: Bootstrap
) -> tuple[Curve, ...]:
    """Return the curves of each system; ``pairs``: names, and two attributes of the rows of queries."""
    found = [
        curve(name, system, points, bootstrap)
        for name, x, y in pairs
        for system, points in _by_system(rows, x, y).items()
    ]
    return tuple(one for one in found if one is not None)


def areas_of(
    rows: Sequence[Any], pairs: Iterable[tuple[str, str, str]], bootstrap: Bootstrap
) -> tuple[CurveArea, ...]:
    """Return the areas under the curves of several systems over the range that all of them cover.

    Args:
        rows: as :func:`curves_of`.
        pairs: as :func:`curves_of`.
        bootstrap: how intervals are computed.

    Returns:
        The areas of each pair that at least two systems have a curve of, with more than one α.
    """
    found = []
    for name, x, y in pairs:
        points = {
            system: mine
            for system, mine in _by_system(rows, x, y).items()
            # A system with one dial, as the oracle, has a point and no range.
            if len({_dial(alpha) for _, alpha, across, up in mine if not np.isnan(across + up)}) > 1
        }
        if len(points) < 2:
            continue
        common = bootstrap.areas(f"areas {name}", [_curve_points(mine) for mine in points.values()])
        differences = (None, *common.differences)
        for system, area, difference in zip(points, common.areas, differences, strict=True):
            found.append(CurveArea(name, system, common.low, common.high, area, difference))
    return tuple(found)


def _by_system(rows: Sequence[Any], x: str, y: str) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for row in rows:
        found.setdefault(row.system, []).append((row.query_id, row.alpha, getattr(row, x), getattr(row, y)))
    return found


def _curve_points(points: Sequence[Point]) -> CurvePoints:
    queries, alphas, xs, ys = zip(*points, strict=True)
    return CurvePoints(queries, xs, ys, [_dial(alpha) for alpha in alphas])


def _dial(alpha: float | None) -> float:
    return np.inf if alpha is None else float(alpha)
