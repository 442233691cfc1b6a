"""Record the span and the duration of an RPC, on both sides of a call alike."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from typing import Final

import grpc
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from evenmesh.wire.errors import reason_in

_W3C: Final = TraceContextTextMapPropagator()
_BUCKETS_MS: Final = [0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000]
_SHORT_S: Final = 0.95
"""Time from which on a caller gives a call time enough: a second, less what its way here takes. Seconds."""
# Statuses that OpenTelemetry's conventions count as failures of the server; the rest are answers.
_SERVER_FAULTS: Final = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


class RpcRecorder:
    """Records each RPC of one side: a span, and a point in the duration histogram.

    The histogram, ``rpc.server.duration`` or ``rpc.client.duration`` in milliseconds, gives rate, errors and
    duration by ``rpc.service``, ``rpc.method`` and ``rpc.grpc.status_code``. A server also counts calls that
    it answers with another status than OK, ``evenmesh.rpc.errors``, with the reason as ``error.type``; that
    of a caller that hung up is ``CANCELLED``. DEADLINE_EXCEEDED of a call whose caller gave it less than a
    second has ``evenmesh.deadline`` = ``short`` in both, as no server is to blame for it. Within a trace that
    is not sampled no span is made, but its context travels on. A point of a sampled trace refers to it (an
    exemplar).

    Args:
        kind: ``SpanKind.SERVER`` or ``SpanKind.CLIENT``.
        tracer: makes the spans.
        meter: makes the histogram.
    """

    def __init__(self, kind: SpanKind, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._kind = kind
        self._tracer = tracer
        self._faults = (
            _SERVER_FAULTS if kind is SpanKind.SERVER else frozenset(grpc.StatusCode) - {grpc.StatusCode.OK}
        )
        self._durations = meter.create_histogram(
            f"rpc.{kind.name.lower()}.duration",
            unit="ms",
            description="Duration of RPCs, streams from first to last message.",
            explicit_bucket_boundaries_advisory=_BUCKETS_MS,
        )
        # Counted on the side that gives the reason.
        self._errors = (
            meter.create_counter(
                "evenmesh.rpc.errors", "{call}", "RPCs that ended with another status than OK, by reason."
            )
            if kind is SpanKind.SERVER
            else None
        )
        self._attributes: dict[str, dict[str, str]] = {}
        self._outcomes: dict[tuple[str, grpc.StatusCode, bool], dict[str, str | int]] = {}

    def begin(self, method: str, parent: Context, given_s: float | None = None) -> RpcRecord:
        """Begin the record of a call.

        Args:
            method: ``/package.Service/Method``.
            parent: the context that it runs within.
            given_s: time that its caller gives it; None for no deadline, or on the caller's side. Seconds.
        """
        above = trace.get_current_span(parent).get_span_context()
        if above.is_valid and not above.trace_flags.sampled:
            return RpcRecord(self, method, None, parent, given_s)
        span = self._tracer.start_span(
            method.lstrip("/"), context=parent, kind=self._kind, attributes=self._of_method(method)
        )
        return RpcRecord(self, method, span, trace.set_span_in_context(span, parent), given_s)

    def end(
        self, record: RpcRecord, code: grpc.StatusCode, trailers: Iterable[tuple[str, str | bytes]]
    ) -> None:
        """End a record with the call's final status and its trailing metadata."""
        short = code is grpc.StatusCode.DEADLINE_EXCEEDED and record.given_s < _SHORT_S
        outcome = self._outcomes.get((record.method, code, short))
        if outcome is None:
            outcome = {**self._of_method(record.method), "rpc.grpc.status_code": code.value[0]}
            if short:
                outcome["evenmesh.deadline"] = "short"
            self._outcomes[record.method, code, short] = outcome
        self._durations.record((time.perf_counter() - record.began) * 1e3, outcome, record.context)
        reason = ""
        if self._errors is not None and code is not grpc.StatusCode.OK:
            reason = reason_in(trailers) or code.name
            self._errors.add(1, {**outcome, "error.type": reason}, record.context)
        span = record.span
        if span is not None:
            if span.is_recording():
                span.set_attribute("rpc.grpc.status_code", code.value[0])
                if reason:
                    span.set_attribute("error.type", reason)
                if code in self._faults:
                    span.set_status(StatusCode.ERROR, code.name)
            span.end()

    def _of_method(self, method: str) -> dict[str, str]:
        attributes = self._attributes.get(method)
        if attributes is None:
            service, _, name = method.lstrip("/").partition("/")
            attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
            self._attributes[method] = attributes
        return attributes


class RpcRecord:
    """The record of a running RPC.

    Attributes:
        context: OpenTelemetry context to run or to send the call in.
        given_s: time that its caller gives it; infinity for no deadline. Seconds.
        span: its span; None within a trace that is not sampled.
    """

    __slots__ = ("_recorder", "began", "context", "given_s", "method", "span")

    def __init__(
        self,
        recorder: RpcRecorder,
        method: str,
        span: trace.Span | None,
        context: Context,
        given_s: float | None,
    ) -> None:
        self._recorder = recorder
        self.began = time.perf_counter()
        self.method = method
        self.span = span
        self.context = context
        self.given_s = math.inf if given_s is None else given_s

    def end(self, code: grpc.StatusCode, trailers: Iterable[tuple[str, str | bytes]] = ()) -> None:
        """End the record with the call's final status and its trailing metadata."""
        self._recorder.end(self, code, trailers)


def extract_context(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """Return the trace context in a call's metadata (W3C Trace Context); empty if there is none."""
    carrier = {key: value for key, value in metadata or () if key in _W3C.fields}
    return _W3C.extract(carrier, Context()) if carrier else Context()


def inject_context(context: Context) -> Mapping[str, str]:
    """Return the metadata that sends a trace context with a call."""
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, context)
    return carrier
