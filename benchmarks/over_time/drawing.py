"""The figures of the study: a line for each policy."""

from __future__ import annotations

from pathlib import Path

from evenmesh_lab.figures.style import figure, finish, save, series, styled


def draw(path: Path, points: dict[str, list[tuple[float, float, float, float]]], *, x: str, y: str) -> None:
    """Draw a line for each policy through its points: x, y and the interval of y."""
    with styled():
        made, axes = figure()
        for place, (policy, some) in enumerate(points.items()):
            colour, marker = series(place)
            middle = [one[1] for one in some]
            spread = [[one[1] - one[2] for one in some], [one[3] - one[1] for one in some]]
            axes.errorbar(
                [one[0] for one in some],
                middle,
                yerr=spread,
                color=colour,
                marker=marker,
                markersize=4,
                label=policy,
            )
        axes.margins(0.06)
        finish(made, axes, x=x, y=y, numbers="xy")
    save(made, path)
