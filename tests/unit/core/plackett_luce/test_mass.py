import math

import numpy as np
import pytest

from evenmesh_core.plackett_luce.mass import build_frames


def bounds_of(taken, n):
    return np.array([[-1, *sorted(taken), n]])


def test_edges_are_prefix_sums_in_ascending_order():
    frames = build_frames(np.log([3.0, 1.0, 2.0]), 3)
    (frame,) = frames.frames
    np.testing.assert_allclose(frame.edges * 3, [0, 0, 1, 1 + 2, 1 + 2 + 3, 1 + 2 + 3])
    assert frames.items(np.array([0, 1, 2])).tolist() == [1, 2, 0]
    assert frames.positions(np.array([0, 1, 2])).tolist() == [2, 0, 1]


def test_what_is_left_is_the_sum_of_the_runs_between_the_items_taken():
    (frame,) = build_frames(np.log([1.0, 2.0, 3.0, 4.0]), 4).frames
    untaken = frame.untaken(bounds_of([1, 3], 4))
    np.testing.assert_allclose(untaken.cumulative * 4, [[0, 1, 1 + 3, 1 + 3]])
    np.testing.assert_allclose(untaken.mass * 4, [1 + 3])


def test_light_items_keep_full_precision_once_the_heavy_are_gone():
    weights = np.array([0.0, math.log(2), 250.0, 299.0])
    (frame,) = build_frames(weights, 4).frames
    mass = frame.untaken(bounds_of([2, 3], 4)).mass[0]
    assert mass * math.exp(frame.reference) == pytest.approx(1 + 2, rel=1e-13)


def test_a_frame_takes_over_when_the_core_above_is_taken():
    frames = build_frames(np.array([0.0, 1.0, 500.0, 501.0, 1000.0]), 5)
    assert [(frame.low, frame.core, frame.high) for frame in frames.frames] == [
        (2, 4, 5),
        (0, 2, 4),
        (0, 0, 2),
    ]
    taken = np.array([[-1, 1, 2, 3, 5], [-1, 2, 3, 4, 5], [-1, 0, 3, 4, 5]])
    assert frames.active(taken).tolist() == [0, 2, 1]


def test_only_the_frames_that_the_draws_can_reach_are_built():
    weights = np.arange(10.0) * 1000
    assert len(build_frames(weights, 1).frames) == 1
    assert len(build_frames(weights, 3).frames) == 3
    assert len(build_frames(weights, 10).frames) == 10


@pytest.mark.parametrize("spread", [0.0, 1.0, 40.0, 250.0])
def test_rounding_at_the_ends_of_runs_never_finds_an_item_again(spread):
    """Aims at every boundary between runs, and at the floats on either side of it."""
    rng = np.random.default_rng(int(spread))
    n = 60
    (frame,) = build_frames(np.sort(rng.random(n)) * spread, n).frames
    for _ in range(150):
        taken = rng.choice(n, size=int(rng.integers(1, n)), replace=False)
        bounds = bounds_of(taken, n)
        untaken = frame.untaken(bounds)
        shares = untaken.cumulative[0] / untaken.mass[0]
        shares = np.concatenate([np.nextafter(shares, 0), shares, np.nextafter(shares, 1), [1 - 2**-53]])
        shares = shares[shares < 1]
        found = frame.untaken(np.repeat(bounds, len(shares), axis=0)).locate(shares)
        assert not set(found.tolist()) & set(taken.tolist())
        assert found.min() >= 0
        assert found.max() < n
