"""An OpenTelemetry collector in the test's own process: it takes OTLP over gRPC and keeps what came."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import trustme
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_METRIC_EXPORT_INTERVAL": "500"}
"""Variables with which services send what they have at once. Milliseconds."""


@dataclass(frozen=True, slots=True)
class Received:
    """A span as it came."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    attributes: dict[str, Any]
    events: tuple[str, ...]
    links: tuple[str, ...]
    raw: str


class Collector(
    trace_service_pb2_grpc.TraceServiceServicer,  # type: ignore[misc]
    metrics_service_pb2_grpc.MetricsServiceServicer,  # type: ignore[misc]
):
    """A context manager around its run.

    Args:
        authority: gives it a certificate for 127.0.0.1; without it, it speaks no TLS.

    Attributes:
        endpoint: where it listens, as the setting ``otlp_endpoint`` wants it.
        headers: those that came with the latest spans.
        metrics: names of those that came.
    """

    def __init__(self, authority: trustme.CA | None = None) -> None:
        self.headers: dict[str, str] = {}
        self.metrics: set[str] = set()
        self._spans: list[Received] = []
        self._exemplars: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        self._news = threading.Condition()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        # Both services call their method Export.
        metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(_Metrics(self), self._server)
        if authority is None:
            self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        else:
            certificate = authority.issue_cert("127.0.0.1")
            chain = b"".join(one.bytes() for one in certificate.cert_chain_pems)
            credentials = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
            self.endpoint = f"https://127.0.0.1:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(0).wait()

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Takes spans."""
        spans = [
            _read(_service(resource), span)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._news:
            self.headers = dict(context.invocation_metadata())
            self._spans += spans
            self._news.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def take(self, request: Any) -> None:
        """Takes metrics, of which the traces that their exemplars name are kept."""
        with self._news:
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        self.metrics.add(metric.name)
                        points = metric.histogram.data_points
                        named = {one.trace_id.hex() for point in points for one in point.exemplars}
                        self._exemplars[_service(resource), metric.name] |= named
            self._news.notify_all()

    def spans_when(
        self, enough: Callable[[Sequence[Received]], bool], *, within_s: float = 60.0
    ) -> list[Received]:
        """All spans, as soon as they are ``enough``, or after ``within_s`` whatever there is."""
        ends = time.monotonic() + within_s
        with self._news:
            while not enough(self._spans) and (left := ends - time.monotonic()) > 0:
                self._news.wait(left)
            return list(self._spans)

    def names(self, service: str, histogram: str, trace: str, *, within_s: float = 60.0) -> bool:
        """Whether a histogram of a service has an exemplar of a trace, waiting for it to come."""
        ends = time.monotonic() + within_s
        with self._news:
            while trace not in self._exemplars[service, histogram] and (left := ends - time.monotonic()) > 0:
                self._news.wait(left)
            return trace in self._exemplars[service, histogram]


class _Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):  # type: ignore[misc]
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._collector.take(request)
        return metrics_service_pb2.ExportMetricsServiceResponse()


def _service(resource: Any) -> str:
    attributes = resource.resource.attributes
    return next(one.value.string_value for one in attributes if one.key == "service.name")


def _read(service: str, span: Any) -> Received:
    return Received(
        service=service,
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        attributes={one.key: _value(one.value) for one in span.attributes},
        events=tuple(event.name for event in span.events),
        links=tuple(link.trace_id.hex() for link in span.links),
        raw=str(span),
    )


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
