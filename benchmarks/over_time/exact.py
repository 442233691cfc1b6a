"""The exact alternative to the controller: a linear program for each ask that knows what providers are owed.

``python -m benchmarks.over_time.exact SET`` prints what it and the controller leave after 1,000 asks.
"""

from __future__ import annotations

import argparse
from typing import Final

import numpy as np
from scipy.optimize import linprog

from benchmarks.over_time.policies import STEP, STRENGTHS, K, Policy, Shown, controller, follow
from benchmarks.over_time.sets import SETS, Pool, pools
from benchmarks.over_time.stream import asks
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure_balance import ExposureBalance

PRICES: Final = (0.25, 0.5, 0.75)


def exposure(pool: Pool, balance: ExposureBalance, price: float) -> FloatArray:
    """Return the exposure of most relevance, less ``price`` times what providers are owed or ahead after it.

    Args:
        pool: candidates of the ask.
        balance: of their providers before it.
        price: of one context owed, in score ranges.

    Source: Biega et al. 2018, in expectation: a linear program in place of an integer one.
    """
    names = list(dict.fromkeys(pool.providers))
    owners = np.array([names.index(one) for one in pool.providers])
    before = dict(zip(balance.names, balance.owed.tolist(), strict=True))
    owed = np.array([before.get(one, 0.0) for one in names]) + np.bincount(owners, pool.merit)
    n, g = len(owners), len(names)
    given = np.zeros((g, n))
    given[owners, np.arange(n)] = 1 / K
    apart = np.eye(g)
    result = linprog(
        np.concatenate([-pool.relevance, np.full(g, price)]),
        A_ub=np.block([[given, -apart], [-given, -apart]]),
        b_ub=np.concatenate([owed, -owed]),
        A_eq=np.concatenate([np.ones(n), np.zeros(g)])[None, :],
        b_eq=[min(K, n)],
        bounds=[(0.0, 1.0)] * n + [(0.0, None)] * g,
        method="highs",
    )
    if result.status:
        raise RuntimeError(f"the linear program is not solved: {result.message}")
    found: FloatArray = np.clip(result.x[:n], 0.0, 1.0)
    return found


def program(price: float) -> Policy:
    """Return the policy of :func:`exposure`; no context is drawn from it."""

    def shown(pool: Pool, balance: ExposureBalance) -> Shown:
        return Shown(exposure(pool, balance, price), lambda _rng: ())

    return shown


def main() -> None:
    """Print unfairness, relevance given up and utility after 1,000 asks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.over_time.exact", description=__doc__)
    parser.add_argument("set", choices=SETS)
    asked = asks(pools(SETS[parser.parse_args().set][1]()))[:STEP]
    for name, setting, policy in (
        *(("exact", one, program(one)) for one in PRICES),
        *(("controller", one, controller(one)) for one in STRENGTHS),
    ):
        found = follow(asked, policy).outcome(name, setting)
        print(f"{name} {setting:g}: {found.unfairness[0]:.4f}, {found.loss[0]:.4f}, {found.utility:.4f}")


if __name__ == "__main__":
    main()
