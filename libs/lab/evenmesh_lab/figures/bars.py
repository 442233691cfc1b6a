"""Exposure of passages, providers and groups against their targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from matplotlib.figure import Figure

from evenmesh_lab.figures.style import (
    COLUMN_INCHES,
    INK,
    SECOND,
    figure,
    finish,
    series,
    shortened,
    styled,
)
from evenmesh_lab.studies.exposure import Exposures, Share

MOST_BARS: Final = 12
MOST_SERIES: Final = 4


def draw_exposure(
    series_of_shares: Sequence[tuple[str, Sequence[Share]]], *, num_queries: int = 1
) -> Figure | None:
    """Draw bars of exposure, one group for each passage or group, and a mark at the target.

    Args:
        series_of_shares: name of a system and exposure of its passages or groups, up to four; the names shown
            are those of the last, and so is their order.
        num_queries: exposure is shown per query.

    Returns:
        None where there is nothing to draw.
    """
    shown = [one for one in series_of_shares if one[1]][:MOST_SERIES]
    if not shown:
        return None
    names = [share.name for share in shown[-1][1][:MOST_BARS]]
    columns = [{share.name: share for share in shares} for _, shares in shown]
    thickness = 0.8 / len(shown)
    with styled():
        height = max(1.6, 0.55 + len(names) * max(0.17, 0.09 * len(shown)) + 0.35)
        made, axes = figure(COLUMN_INCHES, min(height, 7.0))
        places = np.arange(len(names))
        for index, ((label, _), column) in enumerate(zip(shown, columns, strict=True)):
            values = [column[name].exposure / num_queries if name in column else 0.0 for name in names]
            offset = (index - (len(shown) - 1) / 2) * thickness
            axes.barh(
                places + offset,
                values,
                thickness * 0.9,
                color=series(index)[0],
                label=shortened(label, 30) or None,
            )
        for place, name in zip(places, names, strict=True):
            # The targets of the labels are the same under every system.
            target = next((column[name].target for column in columns if name in column), None)
            if target is not None:
                axes.plot(
                    [target / num_queries] * 2,
                    [place - 0.46, place + 0.46],
                    color=INK,
                    linewidth=1.4,
                    solid_capstyle="butt",
                    label="target" if place == 0 else None,
                )
        axes.set_yticks(places, [shortened(name) for name in names])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.spines["left"].set_color(SECOND)
        finish(made, axes, x="expected exposure per query", numbers="x", columns=2)
    return made


def chosen(
    exposures: Sequence[Exposures], of: Literal["passages", "groups"]
) -> list[tuple[str, tuple[Share, ...]]]:
    """Return what :func:`draw_exposure` shows of a study: names and shares.

    Of more than four configurations it is the first and the last of the first two systems.
    """
    known = [one for one in exposures if _shares(one, of)]
    if len(known) > MOST_SERIES:
        by_system = [
            [one for one in known if one.system == system]
            for system in dict.fromkeys(one.system for one in known)
        ]
        known = [one for mine in by_system for one in (mine if len(mine) == 1 else (mine[0], mine[-1]))]
    return [(_configuration(one), _shares(one, of)) for one in known[:MOST_SERIES]]


def _configuration(one: Exposures) -> str:
    dial = "deterministic" if one.alpha is None else f"α = {one.alpha:g}"
    return f"{shortened(one.system, 16)}, {dial}" if one.system else dial


def _shares(one: Exposures, of: Literal["passages", "groups"]) -> tuple[Share, ...]:
    return one.groups if of == "groups" else one.items
