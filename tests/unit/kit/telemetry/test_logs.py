"""Logs: JSON lines with trace ids, without text of users."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_settings import SettingsConfigDict

from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.logs import configure
from tests.support.in_memory_telemetry import InMemoryTelemetry

PRIVATE = "what is my diagnosis"


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Configures logs, and reads what was written."""
    root, ours = logging.getLogger(), logging.getLogger("evenmesh")
    before = (root.handlers[:], root.level, ours.level)

    def start(**settings: Any) -> Any:
        configure("echo", ServiceSettings(home=Path(), **settings))
        return lambda: [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    yield start
    logging.captureWarnings(capture=False)
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])


def test_a_line_says_when_where_and_what(lines: Any) -> None:
    read = lines()
    logging.getLogger("evenmesh.retriever").info("indexed %d passages", 7, extra={"collection": "demo"})
    [line] = read()
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "INFO",
        "service": "echo",
        "logger": "evenmesh.retriever",
        "message": "indexed 7 passages",
        "collection": "demo",
    }


@pytest.mark.parametrize(
    "name",
    [
        "\x9b31mred",
        "two\u2028lines",
        "two\x85lines",
        "\u202egnp.exe",
        "\u2066a\u2069",
        "half \ud800",
        "\x1b[2J\n",
    ],
    ids=["terminal", "line", "next line", "direction", "isolate", "half", "escape"],
)
def test_a_name_changes_no_terminal_and_begins_no_line(
    lines: Any, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    lines()
    target = f"Zoë, 東京 and {name}"
    logging.getLogger("evenmesh.audit").info("call", extra={"target": target})
    written = capsys.readouterr().err.rstrip("\n")
    assert written.isprintable()
    assert "Zoë, 東京" in written
    assert json.loads(written)["target"] == target


def test_text_of_users_is_dropped(lines: Any) -> None:
    read = lines()
    logging.getLogger("evenmesh.echo").info("no answer", extra={"user_text": PRIVATE})
    [line] = read()
    assert line["message"] == "no answer"
    assert "user_text" not in line


def test_an_exception_is_reported_without_what_it_quotes(lines: Any) -> None:
    read = lines()
    try:
        try:
            float(PRIVATE)
        except ValueError as error:
            raise RuntimeError(f"cannot rank for {PRIVATE}") from error
    except RuntimeError:
        logging.getLogger("evenmesh.echo").exception("failed")
    [line] = read()
    assert PRIVATE not in json.dumps(line)
    assert "builtins.RuntimeError" in line["exception"]
    assert "caused by:" in line["exception"]
    assert "builtins.ValueError" in line["exception"]
    assert "test_an_exception_is_reported_without_what_it_quotes" in line["exception"]


def test_no_exception_may_be_said_by_false(lines: Any) -> None:
    """asyncio logs tasks that were destroyed in this way."""
    read = lines()
    logging.getLogger("evenmesh.echo").error("a task was destroyed", exc_info=False)
    [line] = read()
    assert line["message"] == "a task was destroyed"
    assert "exception" not in line


def test_text_of_users_is_kept_if_so_set(lines: Any) -> None:
    read = lines(log_text=True)
    log = logging.getLogger("evenmesh.echo")
    log.info("no answer", extra={"user_text": PRIVATE})
    try:
        float(PRIVATE)
    except ValueError:
        log.exception("failed")
    first, second = read()
    assert first["user_text"] == PRIVATE
    assert PRIVATE in second["exception"]


def test_a_line_within_a_span_carries_its_ids(lines: Any) -> None:
    read = lines()
    telemetry = InMemoryTelemetry("echo")
    with telemetry.tracer.start_as_current_span("work"):
        logging.getLogger("evenmesh.echo").info("inside")
    logging.getLogger("evenmesh.echo").info("outside")
    inside, outside = read()
    [span] = telemetry.spans()
    assert span.context is not None
    assert int(inside["trace_id"], 16) == span.context.trace_id
    assert int(inside["span_id"], 16) == span.context.span_id
    assert "trace_id" not in outside


def test_the_level_is_ours_and_libraries_only_warn(lines: Any) -> None:
    read = lines(log_level="DEBUG")
    logging.getLogger("evenmesh.echo").debug("ours")
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("some.library").warning("trouble")
    assert [line["message"] for line in read()] == ["ours", "trouble"]


def test_what_json_does_not_know_is_reported_by_its_representation(lines: Any) -> None:
    read = lines()
    logging.getLogger("evenmesh.echo").info("x", extra={"path": Path("/a"), "ü": "ü"})
    [line] = read()
    assert line["path"] == repr(Path("/a"))
    assert line["ü"] == "ü"


def test_misspelt_variables_are_named_first(lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings(ServiceSettings):
        model_config = SettingsConfigDict(env_prefix="EVENMESH_ECHO_")

    monkeypatch.setenv("EVENMESH_ECHO_GRACES", "5")
    read = lines()
    configure("echo", Settings())
    assert [(line["level"], line["message"]) for line in read()] == [
        ("WARNING", "no setting reads the variable EVENMESH_ECHO_GRACES (is it EVENMESH_ECHO_GRACE_S?)")
    ]
