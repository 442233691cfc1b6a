import gzip
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.files import passages as readers
from evenmesh.files.read_error import ReadError
from evenmesh.types.passage import Passage

OURS = {"id": "a", "title": "A title", "text": "A text", "attributes": {"provider": "Co-op"}}


def written(path: Path, *lines: dict[str, Any] | bytes) -> Path:
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def test_reads_our_own_form(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", OURS, {"id": "b", "text": "Only text"})

    assert list(readers.read(path)) == [
        Passage("a", "A text", "A title", {"provider": "Co-op"}),
        Passage("b", "Only text"),
    ]
    assert readers.check(path) == 2


def test_reads_beir_and_keeps_what_an_attribute_can_hold(tmp_path: Path) -> None:
    metadata = {"url": "http://x", "year": 2012, "open": True, "authors": ["A", "B"], "note": None}
    path = written(
        tmp_path / "corpus.jsonl", {"_id": "4983", "title": "T", "text": "x", "metadata": metadata}
    )

    assert list(readers.read(path)) == [
        Passage("4983", "x", "T", {"url": "http://x", "year": "2012", "open": "true"})
    ]


def test_members_that_are_not_read_are_named(tmp_path: Path) -> None:
    """A provider beside 'attributes' is no attribute, and a user may take it for one."""
    path = written(
        tmp_path / "p.jsonl", OURS | {"provider": "Co-op"}, {"id": "b", "text": "x", "group": "old"}
    )
    unread: set[str] = set()
    assert readers.check(path, unread) == 2
    assert unread == {"group", "provider"}
    assert readers.unread_shown(unread).startswith("not read: 'group', 'provider'; attributes of a passage")
    beir = written(tmp_path / "b.jsonl", {"_id": "a", "title": "T", "text": "x", "metadata": {}})
    nothing: set[str] = set()
    assert (readers.check(beir, nothing), nothing, readers.unread_shown(nothing)) == (1, set(), "")
    many = written(tmp_path / "m.jsonl", OURS | {f"column {n}": 1 for n in range(50)})
    assert readers.check(many, nothing) == 1
    assert len(nothing) == 20


def test_gzip_is_seen_by_its_content_not_its_name(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(gzip.compress(json.dumps(OURS).encode()))

    assert [passage.id for passage in readers.read(path)] == ["a"]


def test_a_byte_order_mark_and_blank_lines_are_no_obstacle(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", b"\xef\xbb\xbf" + json.dumps(OURS).encode(), b"", b"  \t")

    assert readers.check(path) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"id": "b", "text": "x"', "is not JSON: Expecting ',' delimiter at column 24"),
        (b'{"id": "b", "text": "\xff"}', "is not UTF-8 at byte 22"),
        (b"[1, 2]", "must be a JSON object, not a list"),
        (b"null", "must be a JSON object, not null"),
        (b"[" * 100_000, "is nested too deeply"),
        ({"text": "x"}, "has no 'id'"),
        ({"id": 7, "text": "x"}, "'id' must be a string, not a number"),
        ({"id": "b", "text": None}, "'text' must be a string, not null"),
        ({"id": "b", "text": "x", "title": ["t"]}, "'title' must be a string, not a list"),
        ({"_id": 7, "text": "x"}, "'_id' must be a string, not a number"),
        ({"id": "b", "text": "x", "attributes": ["a"]}, "'attributes' must be an object, not a list"),
        ({"id": "b", "text": "x", "attributes": {"n": 1}}, "'attributes.n' must be a string, not a number"),
        ({"id": "b", "text": "x", "attributes": {"n": {}}}, "'attributes.n' must be a string, not an object"),
        ({"id": "b", "text": "\ud800"}, "'text' holds half a surrogate pair, which is not text"),
        ({"id": "", "text": "x"}, "id must be 1 to 256 bytes, has 0"),
        ({"id": "é" * 129, "text": "x"}, "id must be 1 to 256 bytes, has 258"),
        ({"id": "b\n", "text": "x"}, "id must not hold control characters"),
        ({"id": "b"}, "text must not be empty where the title is empty too"),
        ({"id": "b", "text": "x" * 65_537}, "text must be at most 65536 bytes with the title, has 65537"),
        ({"id": "b", "text": "x", "attributes": {"n": "v" * 1_024}}, "each must be at most 1024 bytes"),
        (b'{"id": "b", "text": "' + b"x" * readers.MAX_LINE_BYTES + b'"}', "is longer than 1,048,576 bytes"),
    ],
)
def test_names_file_and_line_of_what_is_wrong(
    tmp_path: Path, line: dict[str, Any] | bytes, message: str
) -> None:
    path = written(tmp_path / "p.jsonl", OURS, b"", line, OURS)

    with pytest.raises(ReadError) as caught:
        readers.check(path)

    assert caught.value.line == 3
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_repeated_id_names_both_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "p.jsonl", OURS, {**OURS, "id": "b"}, OURS)

    with pytest.raises(ReadError, match=r"line 3: repeats the id 'a' of line 1"):
        readers.check(path)


def test_damaged_gzip_names_the_line_it_came_to(tmp_path: Path) -> None:
    lines = b"".join(
        json.dumps({"id": str(n), "text": os.urandom(64).hex()}).encode() + b"\n" for n in range(1000)
    )
    path = tmp_path / "p.jsonl.gz"
    path.write_bytes(gzip.compress(lines)[:-20])

    with pytest.raises(ReadError, match="gzip data is damaged") as caught:
        readers.check(path)

    assert caught.value.line is not None
    assert 900 < caught.value.line <= 1001


@pytest.mark.parametrize("content", [b"", b"\n\n", gzip.compress(b"", mtime=0)])
def test_a_file_without_passages_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)

    with pytest.raises(ReadError, match="has no passages"):
        readers.check(path)


def test_a_missing_file_and_a_folder_are_errors_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="No such file"):
        readers.check(tmp_path / "none.jsonl")
    with pytest.raises(ReadError, match="is not a file"):
        readers.check(tmp_path)


@given(
    st.lists(
        st.tuples(
            st.text(),
            st.text(min_size=1),
            st.dictionaries(
                st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=20),
                st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=20),
                max_size=3,
            ),
        ),
        max_size=5,
    )
)
def test_whatever_can_be_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, dict[str, str]]]
) -> None:
    passages = [Passage(f"p{n}", text, title, attributes) for n, (title, text, attributes) in enumerate(rows)]
    path = tmp_path_factory.mktemp("read") / "p.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {"id": one.id, "title": one.title, "text": one.text, "attributes": dict(one.attributes)}
            )
            + "\n"
            for one in passages
        ),
        encoding="utf-8",
    )

    assert list(readers.read(path)) == passages


@given(st.binary(max_size=200))
def test_any_bytes_are_passages_or_a_read_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("read") / "p.jsonl"
    path.write_bytes(content)

    with suppress(ReadError):
        assert all(passage.id for passage in readers.read(path))
