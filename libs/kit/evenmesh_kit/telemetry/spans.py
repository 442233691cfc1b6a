"""A service's own spans, within a sampled trace; none elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from evenmesh.wire.errors import MeshError
from evenmesh_kit.telemetry.setup import Telemetry

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value | None]
"""Attributes of a span; one that is None is left out."""


class Spans:
    """Makes spans.

    Attributes:
        text: whether they may have text of users.

    Args:
        telemetry: source of the tracer.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._tracer = telemetry.tracer if telemetry.enabled else None
        self.text = telemetry.text

    @contextmanager
    def within(
        self,
        name: str,
        attributes: Callable[[], Attributes] | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[Span]:
        """Run the block in a span below the current one or ``parent``.

        If that is not recorded, the block gets a span that records nothing, and ``attributes`` is not
        called. A failed block records its reason as ``error.type``, never its message, which may quote a
        user. A cancelled block is not an error.

        Args:
            name: name of the span, out of few values.
            attributes: returns the attributes known at the start.
            kind: kind of the span.
            parent: context of its parent; None: the current one.
            links: related spans.
        """
        above = trace.get_current_span(parent)
        if self._tracer is None or not above.get_span_context().trace_flags.sampled:
            yield trace.INVALID_SPAN
            return
        with self._tracer.start_as_current_span(
            name, parent, kind, links=links, record_exception=False, set_status_on_exception=False
        ) as span:
            if attributes is not None and span.is_recording():
                describe(span, attributes())
            try:
                yield span
            except BaseException as error:
                fail(span, error)
                raise


def describe(span: Span, attributes: Attributes) -> None:
    """Set attributes of a span, except those that are None."""
    span.set_attributes({key: value for key, value in attributes.items() if value is not None})


def fail(span: Span, error: BaseException) -> None:
    """Record in a span why its operation failed."""
    if not span.is_recording():
        return
    span.set_attribute("error.type", reason_of(error))
    if not isinstance(error, asyncio.CancelledError | GeneratorExit):
        span.set_status(StatusCode.ERROR)


def reason_of(error: BaseException) -> str:
    """Return why something failed, as ``error.type`` of spans and metrics: one of few values."""
    if isinstance(error, MeshError):
        return error.reason
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    return type(error).__qualname__
