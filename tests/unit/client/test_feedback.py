"""Feedback as users write it: its ids, and its lines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenmesh import Agent, Feedback, ReadError
from evenmesh.codec.feedback import record_requests
from evenmesh.types.feedback import read
from evenmesh.types.request import passage_message
from evenmesh.wire.errors import InvalidField

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
        (json.dumps({**LINE, "score": 1}).encode(), "has 'score', which is no field"),
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
