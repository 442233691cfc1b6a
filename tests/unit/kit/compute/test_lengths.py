"""Batches of alike lengths."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_kit.compute.lengths import CPU_ROWS, by_length, rows_at_once


@given(st.lists(st.integers(1, 500), max_size=80), st.integers(1, 2000), st.integers(1, 20))
def test_every_row_once_within_the_bounds(lengths: list[int], most: int, size: int) -> None:
    batches = by_length(lengths, most, size=size)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = max(lengths[index] for index in batch) * len(batch)
        assert len(batch) <= size
        assert padded <= most or len(batch) == 1


def test_little_is_padded() -> None:
    """Passage-like lengths (mean 166, deviation 40): under 10 % of the computed tokens are padding."""
    lengths = [int(n) for n in np.random.default_rng(0).normal(166, 40, 200).clip(16, 256)]
    computed = sum(max(lengths[i] for i in batch) * len(batch) for batch in by_length(lengths, 8192))
    assert computed / sum(lengths) < 1.10


@given(st.lists(st.integers(1, 500), max_size=80), st.integers(1, 2000))
def test_without_a_bound_on_rows_tokens_alone_end_a_batch(lengths: list[int], most: int) -> None:
    batches = by_length(lengths, most, size=None)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch, following in pairwise(batches):
        longest = lengths[batch[0]]
        assert longest * len(batch) <= most or len(batch) == 1
        assert longest * (len(batch) + 1) > most, "one more of the next batch would fit"
        assert lengths[following[0]] <= longest


def test_a_gpu_has_no_bound_on_rows() -> None:
    assert [rows_at_once(name) for name in ("cpu", "meta", "cuda", "cuda:1")] == [
        CPU_ROWS,
        CPU_ROWS,
        None,
        None,
    ]
