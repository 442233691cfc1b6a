"""Passages as they lie on disk."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_retriever.backends.segments.files.records import Records, arrays, record_of
from evenmesh_retriever.domain import Passage

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
passages = st.builds(Passage, texts, texts, texts, st.dictionaries(texts, texts, max_size=3))


def stored(some: list[Passage]) -> Records:
    made = arrays([record_of(passage) for passage in some])
    return Records(made["passages.bytes"], made["passages.bounds"])


@given(st.lists(passages, max_size=6))
def test_what_is_written_is_read(some: list[Passage]) -> None:
    records = stored(some)
    assert len(records) == len(some)
    assert [records.passage(row) for row in range(len(some))] == some
    assert [one.decode() for one in records.ids()] == [passage.id for passage in some]
    assert all(records.holds(row, record_of(passage)) for row, passage in enumerate(some))
    rows = np.arange(len(some))
    assert records.raw_bytes(rows) == sum(len(field) for passage in some for field in record_of(passage))


def test_the_same_bytes_in_other_fields_are_another_passage() -> None:
    records = stored([Passage("a", "bc", "d")])
    assert records.holds(0, record_of(Passage("a", "bc", "d")))
    assert not records.holds(0, record_of(Passage("a", "b", "cd")))
    assert not records.holds(0, record_of(Passage("a", "bc", "d", {"provider": "x"})))


def test_the_order_of_attributes_does_not_matter() -> None:
    assert record_of(Passage("a", "", "t", {"x": "1", "y": "2"})) == record_of(
        Passage("a", "", "t", {"y": "2", "x": "1"})
    )


@given(texts, texts)
def test_ids_sort_as_bytes_as_they_do_as_text(one: str, other: str) -> None:
    assert (one.encode() < other.encode()) == (one < other)
