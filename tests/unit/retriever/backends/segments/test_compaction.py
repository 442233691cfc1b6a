"""Which segments are merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_retriever.backends.segments.building.compaction import (
    FAN_IN,
    MOST_DEAD,
    SMALLEST,
    Candidate,
    choose,
)


def candidates(*passages: int, kind: str = "") -> list[Candidate]:
    return [Candidate(f"s{number}", size, size, kind) for number, size in enumerate(passages)]


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [
        ((), []),
        ((1, 1, 1), []),
        ((1, 5, 99, 3), ["s0", "s1", "s2", "s3"]),
        ((100, 100, 100, 399), ["s0", "s1", "s2", "s3"]),
        ((100, 100, 100, 400), []),  # of the next tier
        ((1_000_000, 1, 1, 1, 1), ["s1", "s2", "s3", "s4"]),
        # What is smaller goes along when a larger tier is full.
        ((400, 400, 400, 400, 7, 500), ["s0", "s1", "s2", "s3", "s4", "s5"]),
    ],
)
def test_a_full_tier_is_merged(sizes: tuple[int, ...], merged: list[str]) -> None:
    assert sorted(choose(candidates(*sizes), max_passages=10**6)) == merged


def test_a_segment_that_is_much_gone_is_written_anew() -> None:
    assert choose([Candidate("a", 1000, 700, "")], max_passages=10**6) == []
    assert choose([Candidate("a", 1000, 699, "")], max_passages=10**6) == ["a"]
    assert MOST_DEAD == 0.3


def test_only_segments_of_one_kind_are_merged() -> None:
    mixed = [Candidate(f"s{n}", 1, 1, "embedded" if n % 2 else "") for n in range(6)]
    assert choose(mixed, max_passages=10**6) == []
    mixed += [Candidate("s7", 1, 1, "embedded")]
    assert choose(mixed, max_passages=10**6) == ["s1", "s3", "s5", "s7"]


def test_no_segment_becomes_too_large() -> None:
    assert choose(candidates(*[10] * 4), max_passages=25) == ["s0", "s1"]
    assert choose(candidates(*[10] * 4), max_passages=15) == []


@given(st.lists(st.integers(1, 5000), max_size=200))
def test_segments_stay_few_and_passages_are_rarely_written_again(batches: list[int]) -> None:
    segments: list[int] = []
    written = 0
    for batch in batches:
        segments.append(batch)
        while names := choose(candidates(*segments), max_passages=10**9):
            taken = {int(name[1:]) for name in names}
            total = sum(segments[number] for number in taken)
            written += total
            segments = [size for number, size in enumerate(segments) if number not in taken] + [total]
    # One tier for each power of the fan-in that the total has, and less than a full one left in each.
    total, tiers = sum(batches), 1
    while SMALLEST * FAN_IN ** (tiers - 1) <= total:
        tiers += 1
    assert len(segments) <= tiers * (FAN_IN - 1)
    # A merge adds a passage at least of each other segment, until the lowest tier is left; then one for each.
    assert written <= total * (SMALLEST / (FAN_IN - 1) + tiers)
