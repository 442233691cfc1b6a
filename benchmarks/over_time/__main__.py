"""Simulate asks over time on every set, find the bounds, and write numbers and figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.over_time import tables
from benchmarks.over_time.bound import nearest
from benchmarks.over_time.policies import STEP, K, simulate
from benchmarks.over_time.sets import SETS, Pool, pools
from benchmarks.over_time.stream import ASKS, OUT, asks
from evenmesh_lab.figures.style import figure, finish, save, series, styled

_LOSSES = (0.02, 1.0)


def bounds(asked: Sequence[Pool]) -> list[dict[str, Any]]:
    """Return how near any policy comes, for what may be given up of relevance by score and of utility."""
    found = []
    for count in (STEP, ASKS):
        for loss in _LOSSES:
            some = asked[:count]
            found.append(
                {
                    "asks": count,
                    "loss": loss,
                    "relevance": nearest(some, lambda pool: pool.relevance, loss),
                    "utility": nearest(some, lambda pool: pool.useful / min(K, pool.useful.sum()), loss),
                }
            )
    return found


def main() -> None:
    """Simulate every set, write the figures and the numbers, and print the tables."""
    OUT.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {}
    for name, (provider, read) in SETS.items():
        found = pools(read())
        asked = asks(found)
        outcomes = simulate(asked)
        draw(
            OUT / f"{name}.svg",
            {
                policy: [
                    (one.unfairness[-1], one.utility, one.low, one.high)
                    for one in outcomes
                    if one.policy == policy
                ]
                for policy in dict.fromkeys(one.policy for one in outcomes)
            },
            x=f"unfairness after {ASKS:,} asks",
            y="utility",
        )
        report[name] = {
            "questions": len(found),
            "provider": provider,
            "providers": len({one for pool in found for one in pool.providers}),
            "outcomes": [asdict(one) for one in outcomes],
            "bounds": bounds(asked),
        }
        print(tables.simulated(name, report[name]), flush=True)
    (OUT / "outcomes.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


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


if __name__ == "__main__":
    main()
