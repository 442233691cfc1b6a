"""Passages that say the same: exactly, and nearly."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from evenmesh_documents.duplicates import _BAND_OF, DuplicateFinder, _signature


def sentence(first: int, count: int = 40) -> str:
    return " ".join(f"w{at}" for at in range(first, first + count))


def test_a_text_counts_once_for_each_provider_however_it_is_set() -> None:
    finder = DuplicateFinder()
    assert not finder.repeats("1", "a", "Oil  the\nchain.")
    assert finder.repeats("2", "a", "oil the CHAIN.")
    assert not finder.repeats("3", "b", "Oil the chain.")
    assert finder.repeats("4", "b", "Oil the chain.")
    assert not finder.repeats("5", "", "Oil the chain.")
    found = finder.found()
    assert (found.dropped, found.mirrored, found.near) == (2, 1, 0)


def test_nearly_the_same_is_reported_with_the_nearest_and_dropped_by_nobody() -> None:
    finder = DuplicateFinder()
    # 38 runs of three words; one word at the end changes one of them: Jaccard 37 / 39 = 0.95.
    assert not finder.repeats("1", "a", sentence(0))
    assert not finder.repeats("2", "b", sentence(0).replace("w39", "other"))
    # Half of the words are others: Jaccard 18 / 58 = 0.31.
    assert not finder.repeats("3", "c", sentence(20))
    found = finder.found()
    assert (found.dropped, found.mirrored, found.near) == (0, 0, 1)
    assert found.examples == (("2", "1"),)


def test_short_texts_are_not_called_alike() -> None:
    finder = DuplicateFinder()
    finder.repeats("1", "a", "See the table below for all of it.")
    finder.repeats("2", "a", "See the table below for all of them.")
    assert finder.found().near == 0


def test_examples_are_few() -> None:
    finder = DuplicateFinder(examples=2)
    for at in range(6):
        finder.repeats(str(at), "a", sentence(0) + f" v{at}")
    assert finder.found().near == 5
    assert len(finder.found().examples) == 2


def test_similarity_is_estimated_without_bias_and_near_pairs_are_found() -> None:
    """Of 200 pairs with 37 of 39 runs in common: 0.95 within 3 standard errors, and almost none is missed."""
    pairs, found, estimates = 200, 0, []
    for at in range(pairs):
        finder = DuplicateFinder()
        text = sentence(100 * at)
        finder.repeats("1", "a", text)
        finder.repeats("2", "a", text.replace(f"w{100 * at + 39}", "other"))
        found += finder.found().near
        words = text.split()
        runs = {" ".join(words[first : first + 3]) for first in range(38)}
        other = (runs - {" ".join(words[37:40])}) | {f"w w other{at}"}
        estimates.append(np.mean(_signature(runs) == _signature(other)))
    assert found >= 0.97 * pairs  # at 0.95 banding misses (1 - 0.95⁵)¹² < 1e-7; an estimate below 0.8, few
    assert np.mean(estimates) == pytest.approx(37 / 39, abs=3 * 0.0277 / pairs**0.5)


def test_what_was_remembered_is_found_after_thousands_more() -> None:
    finder = DuplicateFinder()
    for at in range(3_000):
        finder.repeats(str(at), "a", sentence(1_000 * at))
    assert finder.found().near == 0
    for at in range(0, 3_000, 100):
        assert not finder.repeats(
            f"again {at}", "b", sentence(1_000 * at).replace(f"w{1_000 * at + 39}", "other")
        )
    assert finder.found().near == 30
    assert finder.found().examples[1] == ("again 100", "100")


def test_memory_of_a_passage_is_some_hundred_bytes() -> None:
    tracemalloc.start()
    try:
        finder = DuplicateFinder()
        finder.repeats("first", "a", sentence(0))
        before = tracemalloc.get_traced_memory()[0]
        for at in range(1, 2_048):
            finder.repeats(str(at), "a", sentence(1_000 * at))
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown / 2_047 < 700


def test_passages_that_share_a_part_are_compared_with_a_few_and_not_with_all() -> None:
    shared = sentence(0, 30)
    finder = DuplicateFinder()
    for at in range(1_000):
        finder.repeats(str(at), "a", f"{shared} {sentence(1_000 * (at + 1), 30)}")
    signatures = finder._near_ones
    compared = signatures._table[_BAND_OF, signatures._slots(signatures._values[0])]
    assert compared.size == 48
    assert finder.found().near == 0
