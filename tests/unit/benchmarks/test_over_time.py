"""The simulation of fairness over time, on two questions that a reader can follow."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("bm25s")

from benchmarks import over_time
from benchmarks.over_time import Ledger, Pool


def _pool() -> Pool:
    # A deserves 0.6 of a context and B 0.4; the one useful passage is A's.
    return Pool(np.array([3.0, 1.0]), ["A", "B"], np.array([1.0, 0.0]), np.array([0.6, 0.4]))


def test_utility_and_unfairness_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "STEP", 2)
    monkeypatch.setattr(over_time, "K", 1)
    ledger = Ledger()
    ledger.add(_pool(), np.array([1.0, 0.0]))
    ledger.add(_pool(), np.array([0.5, 0.5]))
    found = ledger.outcome("dial", 8.0)
    assert found.utility == pytest.approx(0.75)
    # A got 1.5 contexts and deserved 1.2: a part of 0.3 / 2 asks is with the wrong provider.
    assert found.unfairness == [pytest.approx(0.15)]


def test_the_program_gives_no_provider_more_than_it_deserves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "K", 1)
    np.testing.assert_allclose(over_time._program(_pool(), 0.0), [0.6, 0.4], atol=1e-9)
    np.testing.assert_allclose(over_time._program(_pool(), 0.5), [0.9, 0.1], atol=1e-9)


def test_every_policy_is_tried_on_the_same_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "STEP", 40)
    monkeypatch.setattr(over_time, "K", 1)
    found = over_time.simulate([_pool()] * 40)
    assert {one.policy for one in found} == {"dial", "program", "controller"}
    dial = next(one for one in found if (one.policy, one.setting) == ("dial", 8.0))
    strongest = [one for one in found if one.policy == "controller"][-1]
    assert strongest.unfairness[-1] < dial.unfairness[-1]
