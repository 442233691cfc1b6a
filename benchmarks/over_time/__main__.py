"""Simulate asks over time on every set, find the bounds, and write numbers and figures."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from benchmarks.over_time.bound import nearest
from benchmarks.over_time.drawing import draw
from benchmarks.over_time.policies import STEP, most_useful, simulate
from benchmarks.over_time.sets import SETS, Pool, pools
from benchmarks.over_time.stream import ASKS, OUT, asks

_LOSSES: Final = (0.02, 1.0)


def bounds(asked: Sequence[Pool]) -> list[dict[str, Any]]:
    """Return how near any policy comes, for what may be given up of relevance by score and of utility."""
    return [
        {
            "asks": len(asked),
            "loss": loss,
            "relevance": nearest(asked, lambda pool: pool.relevance, loss),
            "utility": nearest(asked, lambda pool: pool.useful / most_useful(pool), loss),
        }
        for loss in _LOSSES
    ]


def simulated(name: str) -> dict[str, Any]:
    """Simulate a set, draw its figure, and return its numbers."""
    provider, read = SETS[name]
    found = pools(read())
    asked = asks(found)
    outcomes = simulate(asked)
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for one in outcomes:
        points.setdefault(one.policy, []).append((one.unfairness[-1], one.utility, one.low, one.high))
    draw(OUT / f"{name}.svg", points, x=f"unfairness after {ASKS:,} asks", y="utility")
    return {
        "questions": len(found),
        "provider": provider,
        "providers": len({one for pool in found for one in pool.providers}),
        "outcomes": [asdict(one) for one in outcomes],
        "bounds": bounds(asked[:STEP]),
    }


def main() -> None:
    """Simulate sets, and write the figures and the numbers of each when it is done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.over_time", description=__doc__)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)}; default: all")
    given = parser.parse_args()
    if unknown := sorted(set(given.sets) - set(SETS)):
        parser.error(f"no such set: {', '.join(unknown)}; there are {', '.join(SETS)}")
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / "outcomes.json"
    for name in given.sets or SETS:
        made = simulated(name)
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        reports = {one: made if one == name else known[one] for one in SETS if one == name or one in known}
        path.write_text(json.dumps(rounded(reports), indent=1) + "\n", encoding="utf-8")
        print(f"{name} is done", flush=True)


def rounded(value: Any) -> Any:
    """Return a report with its numbers to six digits."""
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
