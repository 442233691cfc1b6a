"""What users write and prove themselves with is in no log, no span, no metric and no error of another's field."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.protobuf.message import Message

from evenmesh_kit.telemetry.logs import JsonFormatter
from tests.fuzz import recipes, rpcs
from tests.fuzz.mesh import RPCS, FuzzMesh
from tests.support.in_memory_telemetry import InMemoryTelemetry

TEXT, NAME, SECRET = "zqtextqz", "zqnameqz", "zqsecretqz"
"""Marks of what was written, of what things are called, and of credentials."""

# Written by people; all other text names something, which an error may repeat to who named it.
WRITTEN = {
    "question",
    "query",
    "text",
    "title",
    "answer",
    "answers",
    "references",
    "description",
    "search",
    "contexts",
    "baseline_answer",
}
# These must be what they are for a call to get anywhere.
KEPT = {
    "collection",
    "name",
    "retriever",
    "reranker",
    "model",
    "template",
    "expression",
    "similarities",
    "analyzer",
    "version",
    "page_token",
    "transcript",
    "reason",
    "conversation_id",
}

pytestmark = pytest.mark.timeout(300)


def marked(message: Message) -> Message:
    """The message with a mark behind every text, as deep as there are any."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            if inner.type == inner.TYPE_STRING:
                for key in list(value):
                    value[key] = f"{value[key]}{NAME}"
        elif field.message_type is not None:
            for one in value if field.is_repeated else (value,):
                marked(one)
        elif field.type == field.TYPE_STRING and field.name not in KEPT:
            mark = TEXT if field.name in WRITTEN else NAME
            if field.is_repeated:
                value[:] = [f"{one} {mark}" if mark is TEXT else f"{one}{mark}"[-128:] for one in value]
            else:
                setattr(message, field.name, f"{value} {mark}" if mark is TEXT else f"{value}{mark}"[-128:])
    return message


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FuzzMesh, Any, io.StringIO]]:
    """The services, what they record, and what they log as they log it."""
    telemetry = InMemoryTelemetry("mesh")
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter("mesh"))
    ours, root = logging.getLogger("evenmesh"), logging.getLogger()
    before = ours.level
    root.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        with FuzzMesh(tmp_path_factory.mktemp("leaks"), telemetry) as mesh:
            yield mesh, telemetry, lines
    finally:
        ours.setLevel(before)
        root.removeHandler(handler)


def test_no_text_and_no_secret_leaves(
    watched: tuple[FuzzMesh, Any, io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, telemetry, lines = watched
    reported: list[str] = []
    monkeypatch.setattr(
        rpcs, "_wrong_with", lambda error: reported.append(f"{error.code()} {error.details()}") or ""
    )
    metadata = (("authorization", f"Bearer {SECRET}"),)
    ends = set()
    for rpc in RPCS:
        for number in range(6):
            sent = [
                marked(one)
                for one in recipes.requests(rpc.name, Random(f"{rpc.name}{number}"), mesh.versions)
            ]
            requests = tuple(one.SerializeToString() for one in sent)
            status, _ = mesh.run(rpcs.send(mesh, rpc, requests, metadata=metadata))
            ends.add((rpc.name, status == "OK"))
            if number == 0 and not rpc.takes_many:
                mesh.run(rpcs.send(mesh, rpc, (requests[0] + b"\x0a\xff",), metadata=metadata))
    assert len({name for name, fine in ends if fine}) > len(RPCS) * 0.7
    assert any("INVALID_ARGUMENT" in one for one in reported)

    logged = lines.getvalue()
    spans = [
        json.dumps(
            [
                one.name,
                dict(one.attributes or {}),
                [event.name for event in one.events],
                one.status.description,
            ]
        )
        + repr([event.attributes for event in one.events])
        for one in telemetry.spans()
    ]
    assert len(spans) > 200
    metrics = repr(
        [
            (name, [dict(point.attributes) for point in metric.data.data_points])
            for name, metric in telemetry.metrics().items()
        ]
    )
    audited = [line for line in logged.splitlines() if '"logger": "evenmesh.audit"' in line]
    assert audited, "the audit log names what was deleted, and who did it"
    assert not [line for line in audited if TEXT in line or SECRET in line]
    others = [line for line in logged.splitlines() if line not in audited]
    for mark in (TEXT, NAME, SECRET):
        assert not [line for line in others if mark in line]
        assert not [one for one in spans if mark in one]
        assert mark not in metrics
    for mark in (TEXT, SECRET):
        assert not [one for one in reported if mark in one]


def test_what_a_library_says_of_a_failure_is_not_logged_either(tmp_path: Path) -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter("mesh"))
    log = logging.Logger("evenmesh.test")
    log.addHandler(handler)
    try:
        try:
            json.loads(f"{TEXT}")
        except ValueError as error:
            raise RuntimeError(f"{SECRET} {error}") from error
    except RuntimeError:
        log.exception("incident")
    assert "RuntimeError" in lines.getvalue()
    assert "caused by" in lines.getvalue()
    assert TEXT not in lines.getvalue()
    assert SECRET not in lines.getvalue()
