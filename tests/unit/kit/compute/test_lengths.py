"""Batches of alike lengths."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_kit.compute.lengths import CPU_ROWS, alike, by_length, rows_at_once


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


@given(st.lists(st.integers(1, 9), max_size=60), st.integers(1, 8), st.integers(1, 6))
def test_alike_rows_once_in_batches_of_one_size(sizes: list[int], threads: int, most: int) -> None:
    batches = alike(sizes, threads, most)
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    computed = [[sizes[index] for index in batch] for batch in batches]
    assert all(len(set(batch)) == 1 and len(batch) <= most for batch in computed)
    assert [batch[0] for batch in computed] == sorted((batch[0] for batch in computed), reverse=True)


@given(st.integers(1, 60), st.integers(1, 8), st.integers(1, 6))
def test_threads_that_take_alike_rows_end_within_a_row(rows: int, threads: int, most: int) -> None:
    ends = [0] * threads
    for batch in alike([16] * rows, threads, most):
        ends[ends.index(min(ends))] += len(batch)
    assert max(ends) <= -(-rows // threads) + (most - 1 if rows > threads else 0)
    assert max(ends) - min(ends) <= most


def test_batches_of_alike_rows_become_smaller() -> None:
    assert [len(batch) for batch in alike([96] * 20, 2, 4)] == [4, 4, 4, 4, 2, 1, 1]
    assert alike([16, 32, 16, 32, 32], 1, 4) == [[1, 3, 4], [0, 2]]
    assert alike([16, 32, 16], 1, 1) == [[1], [0], [2]]
