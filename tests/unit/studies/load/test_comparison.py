"""Two runs."""

import numpy as np
import pytest

from evenmesh_studies.load.analysis.comparison import compare
from evenmesh_studies.load.analysis.resampling import block_resamples


def _compare(before, after, slower=0.1, errors=0.01):
    return compare([before], [after], slower=slower, errors=errors, rng=0)


def _verdict(found, quantity):
    return next(change.verdict for change in found.changes if change.quantity == quantity)


def test_the_same_run_is_the_same(make) -> None:
    one = make(np.random.default_rng(0).gamma(9, 10, 300).tolist())
    found = _compare(one, one, slower=1.0, errors=0.02)
    assert {change.verdict for change in found.changes} == {"same"}
    assert {change.quantity for change in found.changes} >= {"latency p99", "first text p50", "errors"}
    assert not found.worse


def test_twice_as_slow_is_worse_and_twice_as_fast_is_better(make) -> None:
    slow, fast = (make(np.random.default_rng(0).gamma(9, mean / 9, 300).tolist()) for mean in (200, 100))
    assert _verdict(_compare(fast, slow), "latency p50") == "worse"
    assert _verdict(_compare(slow, fast), "latency p50") == "better"


def test_few_calls_do_not_prove_anything(make) -> None:
    rng = np.random.default_rng(1)
    before, after = make(rng.exponential(100, 12).tolist()), make(rng.exponential(110, 12).tolist())
    found = _compare(before, after)
    assert not found.worse
    assert _verdict(found, "latency mean") == "perhaps worse"
    assert "latency p99" not in {change.quantity for change in found.changes}


def test_more_failed_calls_are_worse(make) -> None:
    before, after = make([100.0] * 100), make([100.0] * 100, failed=range(30))
    found = _compare(before, after)
    assert _verdict(found, "errors") == "worse"
    errors = next(change for change in found.changes if change.quantity == "errors")
    assert errors.ratio == pytest.approx(30 / 100 - 0)
    # Newcombe 1998, method 10, of 30/100 and 0/100: Wilson's limits are 0.2189 and 0.3958, 0 and 0.0370.
    assert errors.low == pytest.approx(0.3 - np.hypot(0.3 - 0.2189, 0.0370), abs=1e-3)
    assert errors.high == pytest.approx(0.3 + (0.3958 - 0.3), abs=1e-3)


def test_steps_of_only_one_run_are_reported(make) -> None:
    a, b, c = (make([1.0, 2.0], name=name) for name in "abc")
    found = compare([a, b], [b, c], slower=0.1, errors=0.01, rng=0)
    assert (found.missing, found.added) == (["a"], ["c"])
    assert {change.step for change in found.changes} == {"b"}


def test_resamples_are_blocks_in_a_row() -> None:
    drawn = block_resamples(np.arange(9.0), np.random.default_rng(0), 20)
    assert drawn.shape == (20, 9)
    # Blocks of √9: within one each value is followed by the next, round the end.
    assert (((drawn[:, 1:3] - drawn[:, 0:2]) % 9) == 1).all()
