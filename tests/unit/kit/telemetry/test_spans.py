"""Spans of a service's own: only where a trace is recorded, and without anybody's words."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from evenmesh.wire.errors import NotFound
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Attributes, Spans, describe, reason_of
from tests.support.in_memory_telemetry import InMemoryTelemetry


def test_nothing_is_made_where_telemetry_is_off() -> None:
    def attributes() -> Attributes:
        raise AssertionError("nobody asked")

    with Spans(Telemetry.disabled()).within("step", attributes) as span:
        assert not span.is_recording()


def test_nothing_is_made_outside_a_trace_that_is_recorded() -> None:
    telemetry = InMemoryTelemetry("echo")
    with Spans(telemetry).within("step"):
        pass
    assert telemetry.spans() == ()


def test_a_span_is_below_the_current_one_and_leaves_out_what_is_not_known() -> None:
    telemetry = InMemoryTelemetry("echo")
    with (
        telemetry.tracer.start_as_current_span("call", kind=SpanKind.SERVER),
        Spans(telemetry).within("step", lambda: {"k": 5, "seed": None}) as span,
    ):
        describe(span, {"version": "v1", "alpha": None})
    step, call = telemetry.spans()
    assert step.parent is not None
    assert call.context is not None
    assert step.parent.span_id == call.context.span_id
    assert dict(step.attributes or {}) == {"k": 5, "version": "v1"}


@pytest.mark.parametrize(
    ("error", "reason", "status"),
    [
        (NotFound("collection", "there is no 'a secret'"), "NOT_FOUND", StatusCode.ERROR),
        (KeyError("a secret"), "KeyError", StatusCode.ERROR),
        (asyncio.CancelledError("a secret"), "CANCELLED", StatusCode.UNSET),
    ],
)
def test_a_failure_has_its_reason_and_no_words(error: BaseException, reason: str, status: StatusCode) -> None:
    telemetry = InMemoryTelemetry("echo")
    with (
        telemetry.tracer.start_as_current_span("call"),
        pytest.raises(type(error)),
        Spans(telemetry).within("step"),
    ):
        raise error
    step = telemetry.spans()[0]
    assert dict(step.attributes or {}) == {"error.type": reason} == {"error.type": reason_of(error)}
    assert step.status.status_code is status
    assert "secret" not in step.to_json()
