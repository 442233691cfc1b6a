"""Find the fairness dial of a target, beside one evaluation of exact inclusion probabilities."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from evenmesh_core import plackett_luce
from evenmesh_core.group_shares import ShareBound, shares_policy
from evenmesh_core.plackett_luce import Disparity, RelevanceLoss

HEADING: Final = "Finding the dial of a target"

_SHAPES: Final = ((20, 5), (100, 5), (100, 20), (1000, 5), (1000, 20), (1000, 100))
_QUERIES: Final = 9
_MOST: Final = 0.3
_GROUPS: Final = 20


def measure() -> list[dict[str, str]]:
    """Time targets for pools of several sizes; a row for a shape."""
    return [_measured(items, k) for items, k in _SHAPES]


def section(rows: list[dict[str, str]]) -> str:
    """Return the section of the page."""
    from benchmarks import page

    return f"""Scores of {_QUERIES} queries from a gamma distribution, in descending order; milliseconds of
CPU time of one thread, the least of the runs of a second, median and largest over the queries. Goals:
2 ms for a pool of 100, 20 ms for 1,000. `one evaluation` is of exact inclusion probabilities at the dial that
was found for disparity 0.3, `shares` a linear program: each of {_GROUPS} groups at most {_MOST:g}.

{page.table(rows)}"""


def _measured(items: int, k: int) -> dict[str, str]:
    rng = np.random.default_rng(items)
    pools = [np.sort(rng.gamma(1.0, size=items))[::-1] for _ in range(_QUERIES)]
    groups = rng.integers(0, _GROUPS, items)
    bounds = [ShareBound(groups == one, at_most=_MOST) for one in range(_GROUPS)]
    dials = [plackett_luce.policy_for(Disparity(0.3), one, one, k=k).alpha for one in pools]
    weights = [plackett_luce.log_weights(one, dial) for one, dial in zip(pools, dials, strict=True)]
    row = {"pool": f"{items:,}", "k": str(k)}
    for name, target in (
        ("disparity 0.3", Disparity(0.3)),
        ("disparity 0.8", Disparity(0.8)),
        ("relevance loss 0.02", RelevanceLoss(0.02)),
    ):
        row[name] = _over([partial(plackett_luce.policy_for, target, one, one, k=k) for one in pools])
    evaluate = plackett_luce.inclusion_probabilities
    row["one evaluation"] = _over([partial(evaluate, one, k=k) for one in weights])
    row["shares"] = _over([partial(shares_policy, one, bounds, k=k) for one in pools])
    return row


def _over(runs: Sequence[Callable[[], object]]) -> str:
    times = [_milliseconds(run) for run in runs]
    return f"{median(times):.2f} / {max(times):.2f}"


def _milliseconds(run: Callable[[], object]) -> float:
    """Return the least CPU time of as many runs as fit in a second, 3 at least: the machine is shared."""
    times: list[float] = []
    ends = time.perf_counter() + 1
    while len(times) < 3 or time.perf_counter() < ends:
        began = time.thread_time()
        run()
        times.append(1e3 * (time.thread_time() - began))
    return min(times)
