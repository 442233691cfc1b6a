"""Passages as they lie on disk."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.retriever.backends.local.records import RecordFile, bounds_of, joined, record_of, sizes_of
from services.retriever.domain import Passage

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
passages = st.builds(Passage, texts, texts, texts, st.dictionaries(texts, texts, max_size=3))


def stored(
    some: list[Passage], base: RecordFile | None = None, sources: list[int] | None = None
) -> RecordFile:
    records = [record_of(passage) for passage in some]
    rows = list(range(len(some))) if sources is None else sources
    sizes = sizes_of(records)
    if base is not None:
        sizes = np.concatenate([base.sizes, sizes])
    return RecordFile(b"".join(joined(base, records, rows)), bounds_of(sizes[rows]))


@given(st.lists(passages, max_size=6))
def test_what_is_written_is_read(some: list[Passage]) -> None:
    file = stored(some)
    assert len(file) == len(some)
    assert [file.passage(row) for row in range(len(some))] == some
    assert file.ids() == [passage.id for passage in some]
    assert all(file.holds(row, record_of(passage)) for row, passage in enumerate(some))


@given(st.lists(passages, min_size=1, max_size=6), st.lists(passages, max_size=6), st.data())
def test_rows_are_taken_over(old: list[Passage], new: list[Passage], data: st.DataObject) -> None:
    rows = data.draw(st.permutations(range(len(old) + len(new))))
    file = stored(new, stored(old), list(rows))
    assert [file.passage(row) for row in range(len(rows))] == [(old + new)[row] for row in rows]


def test_the_same_bytes_in_other_fields_are_another_passage() -> None:
    file = stored([Passage("a", "bc", "d")])
    assert file.holds(0, record_of(Passage("a", "bc", "d")))
    assert not file.holds(0, record_of(Passage("a", "b", "cd")))
    assert not file.holds(0, record_of(Passage("a", "bc", "d", {"provider": "x"})))


def test_the_order_of_attributes_does_not_matter() -> None:
    assert record_of(Passage("a", "", "t", {"x": "1", "y": "2"})) == record_of(
        Passage("a", "", "t", {"y": "2", "x": "1"})
    )


def test_files_are_mapped(tmp_path: Path) -> None:
    path = tmp_path / "passages.bin"
    records = [record_of(Passage("a", "t", "x")), record_of(Passage("b", "", "y"))]
    path.write_bytes(b"".join(joined(None, records, [0, 1])))
    file = RecordFile.open(path, bounds_of(sizes_of(records)))
    assert file.passage(1) == Passage("b", "", "y")
    path.write_bytes(b"")
    assert len(RecordFile.open(path, bounds_of(sizes_of([])))) == 0
