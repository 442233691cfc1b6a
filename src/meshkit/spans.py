"""Spans of a service's own, within the trace of a call that is recorded; nothing at all elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode

from meshkit.errors import MeshError
from meshkit.telemetry import Telemetry

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value | None]
"""Attributes of a span; one that is None is left out."""


class Spans:
    """Makes them.

    Attributes:
        text: whether they may have text of users.

    Args:
        telemetry: has the tracer.
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
        """A span around the block, below the current one or ``parent``.

        Where that is not recorded, the block gets a span that records nothing, and ``attributes`` is not
        called. A block that fails has its reason as ``error.type``, and never its words, which may be a
        user's; one that is cancelled is no error.

        Args:
            name: of few values.
            attributes: gives the attributes known at the start.
            kind: what it stands for.
            parent: the context it lies in; None: the current one.
            links: other spans it has to do with.
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
    """Gives a span attributes; those that are None are left out."""
    span.set_attributes({key: value for key, value in attributes.items() if value is not None})


def fail(span: Span, error: BaseException) -> None:
    """Says of a span how what it stands for failed."""
    if not span.is_recording():
        return
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        span.set_attribute("error.type", "CANCELLED")
        return
    span.set_attribute("error.type", reason_of(error))
    span.set_status(StatusCode.ERROR)


def reason_of(error: BaseException) -> str:
    """Why something failed, as ``error.type`` of spans and metrics: one of few words, no user's."""
    if isinstance(error, MeshError):
        return error.reason
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    return type(error).__qualname__
