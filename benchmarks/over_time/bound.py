"""The nearest to what providers deserve that any policy comes who knows all asks before the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, eye_array, hstack, vstack

from benchmarks.over_time.policies import K
from benchmarks.over_time.sets import Pool
from evenmesh_core.arrays import FloatArray


def nearest(asked: Sequence[Pool], gains: Callable[[Pool], FloatArray], loss: float) -> float:
    """Return the least unfairness over all asks together, of policies that give up at most ``loss``.

    A linear program over the exposure of each candidate of each question, as of
    :class:`benchmarks.over_time.policies.Outcome`. No policy needs to treat asks of one question differently,
    because all that counts is their mean.

    Args:
        asked: pools of the asks.
        gains: of a pool's candidates.
        loss: part of the largest possible sum of gains, [0, 1].

    Raises:
        RuntimeError: the program is not solved.
    """
    counts = Counter(asked)
    pools = list(counts)
    providers = {one: row for row, one in enumerate({one for pool in pools for one in pool.providers})}
    target = np.zeros(len(providers))
    rows, shares, profits, best = [], [], [], 0.0
    for pool in pools:
        times = counts[pool]
        mine = [providers[one] for one in pool.providers]
        gain = gains(pool)
        np.add.at(target, mine, times * pool.merit / len(asked))
        rows += mine
        shares += [times / K / len(asked)] * len(mine)
        profits.append(times * gain)
        best += times * float(np.sort(gain)[-K:].sum())
    n, g = len(rows), len(providers)
    given = csr_array((shares, (rows, np.arange(n))), shape=(g, n))
    owners = np.repeat(np.arange(len(pools)), [len(pool.providers) for pool in pools])
    places = csr_array((np.ones(n), (owners, np.arange(n))), shape=(len(pools), n))
    apart = eye_array(g)
    profit = csr_array(np.concatenate([-np.concatenate(profits), np.zeros(g)])[None, :])
    result = linprog(
        np.concatenate([np.zeros(n), np.full(g, 0.5)]),
        A_ub=vstack([hstack([given, -apart]), hstack([-given, -apart]), profit]),
        b_ub=np.concatenate([target, -target, [-(1 - loss) * best]]),
        A_eq=hstack([places, csr_array((len(pools), g))]),
        b_eq=np.full(len(pools), float(K)),
        bounds=[(0.0, 1.0)] * n + [(0.0, None)] * g,
        method="highs",
    )
    if result.status:
        raise RuntimeError(f"the linear program is not solved: {result.message}")
    return max(0.0, float(result.fun))
