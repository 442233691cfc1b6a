"""Parquet files: what is written is read, to the last character, and what is damaged is refused."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.files import parquet
from evenmesh.files import passages as readers
from evenmesh.files.parquet import Manifest
from evenmesh.files.read_error import ReadError
from evenmesh.types.collection import Collection, Lexical
from evenmesh.types.passage import Passage

ODD = [
    Passage("a'\"\\;--", "Text\nwith\r\nlines\tand \x01 and \x00", "", {}),
    Passage("ünï/ço de", "", "Only a title ☃ \U0001f600", {"provider": "Brød & Co", "": "no name"}),
    Passage(
        "z", " blanks around ", " and in the title ", {'we"ird\\key': "va'lue\n", "n": "1e3", "empty": ""}
    ),
]


def collection(lexical: Lexical = Lexical("english", 0.9, 0.4)) -> Collection:  # noqa: B008
    return Collection("bikes", "v7", 3, 10, "minilm", "english-1", "About bikes", datetime.now(UTC), lexical)


def exported(path: Path, passages: Iterable[Passage] = ODD) -> Manifest:
    writer = parquet.Writer(path)
    for passage in passages:
        writer.add(passage)
    return writer.finish(collection())


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    written = exported(path)

    assert list(readers.read(path)) == ODD
    assert readers.check(path) == 3
    assert parquet.check(path) == parquet.manifest(path) == written
    assert (written.collection, written.version, written.description) == ("bikes", "v7", "About bikes")
    assert written.lexical == Lexical("english", 0.9, 0.4)
    assert pq.read_schema(path).field("attributes").type == pa.map_(pa.string(), pa.string())
    assert [one.name for one in tmp_path.iterdir()] == ["c.parquet"]


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30)


@given(
    st.lists(
        st.builds(
            Passage,
            texts.filter(bool),
            texts.filter(bool),
            texts,
            st.dictionaries(texts, texts, max_size=3),
        ),
        max_size=5,
        unique_by=lambda passage: passage.id,
    )
)
def test_any_passages_come_back(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> None:
    path = tmp_path_factory.mktemp("any") / "c.parquet"
    assert exported(path, passages).num_passages == len(passages)
    assert list(parquet.read(path)) == passages


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"id": ["a"], "text": ["t"], "provider": ["x"]}), path)
    unread: set[str] = set()
    assert readers.check(path, unread) == 1
    assert unread == {"provider"}


def test_an_empty_collection_is_a_file_too(tmp_path: Path) -> None:
    exported(tmp_path / "c.parquet", [])
    assert parquet.check(tmp_path / "c.parquet").num_passages == 0
    with pytest.raises(ReadError, match="has no passages"):
        readers.check(tmp_path / "c.parquet")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "c.parquet"
    exported(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ReadError, match="is not a whole Parquet file") as refused:
        parquet.check(path)
    assert "\n" not in str(refused.value)


def test_damage_is_refused_or_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    passages = [Passage(f"p{n}", f"text number {n} " * 5) for n in range(50)]
    exported(path, passages)
    whole = path.read_bytes()
    refused: list[str] = []
    places = range(4, len(whole) - 4, 61)
    for at in places:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            parquet.check(path)
        except ReadError as error:
            refused.append(str(error))
        else:
            # Some bytes of a file say nothing, such as who wrote it or what its smallest value is.
            assert list(parquet.read(path)) == passages
    assert len(refused) > len(places) / 2
    assert not any("\n" in line for line in refused)


def test_a_file_of_other_passages_than_it_says_is_refused(tmp_path: Path) -> None:
    exported(tmp_path / "c.parquet")
    stored = pq.read_metadata(tmp_path / "c.parquet").metadata
    table = pq.read_table(tmp_path / "c.parquet").replace_schema_metadata(stored)
    pq.write_table(table.slice(0, 2), tmp_path / "fewer.parquet")
    with pytest.raises(ReadError, match="has 2 passages and says 3"):
        parquet.check(tmp_path / "fewer.parquet")
    changed = table.set_column(2, table.schema.field("text"), [["x", "", "y"]])
    pq.write_table(changed, tmp_path / "changed.parquet")
    with pytest.raises(ReadError, match="its SHA-256 differs"):
        list(readers.read(tmp_path / "changed.parquet"))


def test_files_of_others_are_read_and_not_taken_for_exported_ones(tmp_path: Path) -> None:
    path = tmp_path / "theirs.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["x", "y"], "score": [1.0, 2.0]}), path)
    assert list(readers.read(path)) == [Passage("a", "x"), Passage("b", "y")]
    with pytest.raises(ReadError, match="was not written by `evenmesh collection export`"):
        parquet.check(path)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": ["a"], "text": ["x"]}, "must have columns id and text, has key, text"),
        ({"id": ["a"]}, "must have columns id and text, has id"),
        ({"id": [1], "text": ["x"]}, "column 'id' must be string, is int64"),
        ({"id": ["a"], "text": ["x"], "attributes": ["y"]}, "must be map<string, string>, is string"),
        ({"id": ["a", "a"], "text": ["x", "y"]}, "row 2: repeats the id 'a' of row 1"),
        ({"id": ["a", None], "text": ["x", "y"]}, "row 2: id must be 1 to 256 bytes, has 0"),
        (
            {"id": ["a", "b"], "text": [None, "x"]},
            "row 1: text must not be empty where the title is empty too",
        ),
    ],
)
def test_wrong_columns_and_rows_are_named(
    tmp_path: Path, columns: dict[str, list[object]], message: str
) -> None:
    path = tmp_path / "wrong.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(ReadError) as refused:
        readers.check(path)
    assert message in str(refused.value)


def test_what_a_later_version_wrote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "later.parquet"
    table = pa.table({"id": ["a"], "text": ["x"]})
    for stored, message in (('{"format": 2}', "by a later version"), ("nonsense", "cannot be read")):
        pq.write_table(table.replace_schema_metadata({"evenmesh": stored}), path)
        with pytest.raises(ReadError, match=message):
            parquet.manifest(path)


def test_an_abandoned_file_leaves_nothing(tmp_path: Path) -> None:
    writer = parquet.Writer(tmp_path / "c.parquet")
    writer.add(ODD[0])
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_parts_are_bounded_by_number_and_size() -> None:
    passages = [Passage(str(n), "x" * 10) for n in range(7)]
    assert [len(part) for part in parquet.parts(passages, 3, 1000)] == [3, 3, 1]
    assert [len(part) for part in parquet.parts(passages, 100, 20)] == [2, 2, 2, 1]
    assert [one for part in parquet.parts(passages, 3, 1000) for one in part] == passages
