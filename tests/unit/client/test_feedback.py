"""Feedback as users write it: its ids, and its lines."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evenmesh import Agent, Feedback, ReadError
from evenmesh.codec.feedback import record_requests
from evenmesh.files import feedback_parquet
from evenmesh.types.feedback import FeedbackResult, Recorded, StoredFeedback, read
from evenmesh.types.request import passage_message
from evenmesh.wire.errors import InvalidField, MeshError

ONE = Feedback("q", "p", 1.0, Agent("qa", "ann"), "v", "c", ("p", "r"))
LINE: dict[str, Any] = {"query": "q", "passage_id": "p", "usefulness": 1, "agent": {"task_id": "qa"}}


def test_the_id_is_that_of_the_content_or_the_users_own() -> None:
    assert ONE.key == replace(ONE, usefulness=1).key
    assert len(ONE.key) == 32
    others = [
        replace(ONE, query="x"),
        replace(ONE, passage_id="x"),
        replace(ONE, usefulness=0.5),
        replace(ONE, agent=Agent("qa", "bob")),
        replace(ONE, model_version="x"),
        replace(ONE, collection="x"),
        replace(ONE, ranking=("r", "p")),
    ]
    assert len({one.key for one in (ONE, *others)}) == 8
    assert replace(ONE, id="mine").key == "mine"


def test_lines_are_feedback() -> None:
    whole = {
        "id": "1",
        "query": "q",
        "passage_id": "p",
        "usefulness": 1,
        "agent": {"task_id": "qa", "model_id": "ann"},
        "model_version": "v",
        "collection": "c",
        "ranking": ["p", "r"],
    }
    lines = [json.dumps(LINE).encode(), b"\n", b"  \n", json.dumps(whole).encode()]
    assert list(read(lines, Path("f"))) == [
        Feedback("q", "p", 1.0, Agent("qa", "")),
        replace(ONE, id="1"),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert len(list(read([b"\xef\xbb\xbf" + json.dumps(LINE).encode()], Path("f")))) == 1
    assert len(list(read([b"\xef\xbb\xbf\n", json.dumps(LINE).encode()], Path("f")))) == 1


@pytest.mark.parametrize(
    ("lines", "said"),
    [([], "has no feedback"), ([b"\n", b" \n"], "has no feedback"), ([b"\x1f\x8b\x08"], "is compressed")],
    ids=range(3),
)
def test_a_file_that_is_none_is_named(lines: list[bytes], said: str) -> None:
    with pytest.raises(ReadError, match=rf"^f: {said}"):
        list(read(lines, Path("f")))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not UTF-8 at byte 1"),
        (b"[]", "must be a JSON object"),
        (b"{}", "has no 'query'"),
        (json.dumps({**LINE, "score": 1}).encode(), "has an unknown field: 'score'"),
        (json.dumps({**LINE, "usefulness": "1"}).encode(), "'usefulness' must be a number"),
        (json.dumps({**LINE, "usefulness": True}).encode(), "'usefulness' must be a number"),
        (json.dumps({**LINE, "usefulness": float("nan")}).encode(), "'usefulness' must be a number"),
        (json.dumps({**LINE, "agent": "ann"}).encode(), "'agent' must be an object"),
        (json.dumps({**LINE, "agent": {"task": "qa"}}).encode(), "'agent' must be an object"),
        (json.dumps({**LINE, "ranking": "p"}).encode(), "'ranking' must be a list"),
        (json.dumps({**LINE, "collection": 1}).encode(), "'collection' must be a string"),
        (b"[" * 100_000, "is nested too deeply"),
        (b" " + b"x" * (1 << 20), "is longer than"),
    ],
    ids=range(14),
)
def test_a_line_that_is_none_is_named(line: bytes, said: str) -> None:
    with pytest.raises(ReadError, match=rf"^f, line 2: {said}"):
        list(read([json.dumps(LINE).encode(), line], Path("f")))


def test_what_is_no_feedback_is_refused_by_its_type() -> None:
    with pytest.raises(InvalidField, match=r"feedback: must be of evenmesh\.Feedback, not str"):
        list(record_requests(LINE))  # type: ignore[arg-type]
    with pytest.raises(InvalidField, match=r"passages: must be of evenmesh\.Passage, not dict"):
        passage_message({"id": "a"})  # type: ignore[arg-type]


STORED = [
    StoredFeedback(replace(ONE, id="1"), datetime(2026, 11, 1, tzinfo=UTC), "", 1),
    StoredFeedback(
        Feedback("é", "p2", 0.25, Agent("", "bob"), id="2"), datetime(2026, 11, 2, tzinfo=UTC), "", 7
    ),
]


def test_what_was_exported_is_feedback_for_another_mesh(tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"
    feedback_parquet.write(file, STORED)
    assert list(feedback_parquet.read(file)) == [one.feedback for one in STORED]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (("query", None), "row 1: 'query' must be a string"),
        (("usefulness", None), "row 1: 'usefulness' must be a number from 0 to 1"),
        (("task_id", 7), "row 1: 'agent' must be an object"),
        (("ranking", "p"), "row 1: 'ranking' must be a list of strings"),
        (("passage_id", ...), "was not written by `evenmesh feedback export`: lacks 'passage_id'"),
    ],
)
def test_rows_that_are_no_feedback_name_their_column(
    tmp_path: Path, column: tuple[str, Any], said: str
) -> None:
    name, value = column
    feedback_parquet.write(tmp_path / "good.parquet", STORED[:1])
    row = pq.read_table(tmp_path / "good.parquet").to_pylist()[0] | {name: value}
    if value is ...:
        del row[name]
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "bad.parquet")
    with pytest.raises(ReadError, match=re.escape(said)):
        list(feedback_parquet.read(tmp_path / "bad.parquet"))


def test_a_file_that_was_cut_off_or_holds_nothing_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "out.parquet"
    feedback_parquet.write(file, [])
    with pytest.raises(ReadError, match="has no feedback"):
        list(feedback_parquet.read(file))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ReadError, match="is not a whole Parquet file"):
        list(feedback_parquet.read(file))


def test_an_outcome_of_many_items_is_printed_as_counts() -> None:
    error = MeshError(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "must be a number")
    items = [
        *(FeedbackResult(f"{at}", duplicate=False, flagged=at == 0, error=None) for at in range(7)),
        FeedbackResult("again", duplicate=True, flagged=False, error=None),
        FeedbackResult("wrong", duplicate=False, flagged=False, error=error),
    ]
    assert repr(Recorded(tuple(items))) == "Recorded(stored=7, duplicates=1, flagged=1, refused=1)"
