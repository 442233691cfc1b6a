"""Server-sent events from bytes in any pieces."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_kit.remote.errors import MalformedReply
from evenmesh_kit.remote.events import EventReader

STREAM = (
    b": ping\n\nevent: x\ndata: one\n\ndata:two\r\n\r\nid: 7\nretry: 5\n\n"
    b"data: a\ndata:  b\n\ndata\n\ndata: \xc3\xa9\n\ndata: cut"
)
DATA = ["one", "two", "a\n b", "", "é"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_cuts_between_pieces_do_not_matter(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    read = [data for begin, end in pairwise(places) for data in reader.feed(STREAM[begin:end])]
    assert read == DATA


def test_an_event_that_is_not_utf8_is_malformed() -> None:
    with pytest.raises(MalformedReply):
        EventReader().feed(b"data: \xff\n\n")


@pytest.mark.parametrize("line", [b"data: " + b"x" * 1000 + b"\n", b"y" * 1000])
def test_an_event_has_a_largest_size(line: bytes) -> None:
    reader = EventReader()
    with pytest.raises(MalformedReply) as caught:
        for _ in range(2000):
            reader.feed(line)
    assert caught.value.reason == "REMOTE_REPLY_TOO_LARGE"
