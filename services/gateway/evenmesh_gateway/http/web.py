"""What every request passes: its trace, its record in the log, and its error as a response."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind, StatusCode
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evenmesh.wire.errors import MeshError, Unauthenticated
from evenmesh_gateway.http.events import HungUpError
from evenmesh_gateway.http.problems import HttpProblem, problem_response
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.rpc.statuses import to_mesh_error
from evenmesh_kit.telemetry.recorder import extract_context

_REASONS: Final = {404: "NO_ROUTE", 405: "NO_METHOD"}
_HUNG_UP: Final = 499
_MISDIRECTED: Final = 421
_TOO_LONG_A_HEAD: Final = 431
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths of health, which reveal nothing. Kubernetes asks for them by the address of the pod."""
CROWDED: Final = "evenmesh.crowded"
"""Member of a request's scope that the server sets where more connections are open than may be."""
_OTHER: Final = "_OTHER"
"""How telemetry calls all other methods: clients may write anything, and each name would be a series."""
_BUCKETS_S: Final = [0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300]
_log = logging.getLogger("evenmesh.gateway.access")


class Records:
    """Middleware that runs a request within its caller's trace and records it.

    A record has the route and never the path, the query, the headers or a body: they may hold texts. The
    histogram ``http.server.request.duration`` has the route, the method and the status; that of a client that
    hung up is 499. A method that APIs do not use is ``_OTHER``, as OpenTelemetry's conventions say.

    Args:
        app: what answers.
        tracer: makes the spans.
        meter: makes the histogram.
    """

    def __init__(self, app: ASGIApp, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        self._app = app
        self._tracer = tracer
        self._durations = meter.create_histogram(
            "http.server.request.duration",
            unit="s",
            description="Duration of HTTP requests, streams to their last event.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, size = _HUNG_UP, 0

        async def sending(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        parent = extract_context(
            [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        )
        method = scope["method"] if scope["method"] in _METHODS else _OTHER
        span = self._tracer.start_span(method, context=parent, kind=SpanKind.SERVER)
        context = trace.set_span_in_context(span, parent) if span.get_span_context().is_valid else parent
        token = otel_context.attach(context)
        try:
            await self._app(scope, receive, sending)
        finally:
            route = _route_of(scope)
            attributes = {
                "http.request.method": method,
                "http.route": route,
                "http.response.status_code": status,
            }
            seconds = time.perf_counter() - began
            self._durations.record(seconds, attributes, context)
            span.update_name(f"{method} {route}")
            span.set_attributes(attributes)
            if status >= 500:
                span.set_status(StatusCode.ERROR)
            span.end()
            _log.info(
                "request",
                extra={
                    "method": method,
                    "route": route,
                    "status": status,
                    "duration_ms": round(1e3 * seconds, 1),
                    "bytes": size,
                },
            )
            otel_context.detach(token)


class Problems:
    """Middleware that answers with problem details where nothing has been answered yet.

    Args:
        app: what answers.
        settings: the largest headers, of which the server bounds those alone that come in several pieces; and
            the names by which clients may call.
        adds: returns the members that are added to a problem without a route: no such path, or no routing.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: GatewaySettings,
        adds: Callable[[MeshError | HttpProblem], dict[str, Any]] | None = None,
    ) -> None:
        self._app = app
        self._adds = adds
        self._max_header_bytes = settings.max_header_bytes
        self._hosts = settings.known_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            if scope["type"] == "http":
                if CROWDED in scope:
                    raise HttpProblem(503, "TOO_MANY_CONNECTIONS", "too many connections are open: try again")
                self._check_headers(scope)
            await self._app(scope, receive, sending)
        except HungUpError:
            return
        except HTTPException as error:
            if started:
                raise
            lost = _unrouted(error)
            response = problem_response(lost, self._added(scope, lost))
            response.headers.update(error.headers or {})
            await response(scope, receive, send)
        except Exception as error:
            if scope["type"] != "http" or started:
                raise
            problem = error if isinstance(error, (MeshError, HttpProblem)) else to_mesh_error(error)
            await problem_response(problem, self._added(scope, problem))(scope, receive, send)

    def _added(self, scope: Scope, problem: MeshError | HttpProblem) -> dict[str, Any]:
        route = scope.get("route")
        adds = route.adds if isinstance(route, GatewayRoute) else self._adds
        return {} if adds is None else adds(problem)

    def _check_headers(self, scope: Scope) -> None:
        headers = scope["headers"]
        if sum(len(name) + len(value) for name, value in headers) > self._max_header_bytes:
            words = f"the headers must be at most {self._max_header_bytes:,} bytes here"
            raise HttpProblem(_TOO_LONG_A_HEAD, "HEADERS_TOO_LARGE", words)
        host = next((value for name, value in headers if name == b"host"), b"").decode("latin-1").lower()
        if self._hosts and scope["path"] not in PROBES and _without_port(host) not in self._hosts:
            words = "this name is not known here: set EVENMESH_GATEWAY_HOSTS to the names of this gateway"
            raise HttpProblem(_MISDIRECTED, "UNKNOWN_HOST", words)
        # Another program on the way may have checked the other one.
        if sum(name == b"authorization" for name, _ in headers) > 1:
            raise Unauthenticated("TWO_CREDENTIALS", "send the header Authorization once, not several times")


def _without_port(host: str) -> str:
    name, separator, port = host.rpartition(":")
    return name if separator and port.isdecimal() else host


class GatewayRoute(Route):
    """A route that the request it matches remembers.

    Args:
        path: the path.
        endpoint: what answers.
        adds: returns the members that are added to a problem of this route; None for none.
        passes: whether a body is sent on as it comes, and not held.
    """

    def __init__(
        self,
        path: str,
        endpoint: Any,
        *,
        adds: Callable[[MeshError | HttpProblem], dict[str, Any]] | None = None,
        passes: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(path, endpoint, **options)
        if inspect.isroutine(endpoint):
            self.app = _answering(endpoint)
        self.adds = adds
        self.passes = passes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a request; one with another method is of this route, too, and so is its problem."""
        match, child = super().matches(scope)
        return match, child if match is Match.NONE else {**child, "route": self}


class GatewayRouter(Router):
    """Routes requests; of a path without parts that vary the route is looked up, and not looked for.

    Args:
        routes: what there is, the first that matches first.
    """

    def __init__(self, routes: Sequence[GatewayRoute]) -> None:
        super().__init__(routes)
        self._literal: dict[str, GatewayRoute] = {}
        patterns = []
        for route in routes:
            if "{" in route.path:
                patterns.append(route.path_regex)
            elif not any(one.match(route.path) for one in patterns):
                self._literal.setdefault(route.path, route)

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._literal.get(scope["path"]) if scope["type"] == "http" else None
        if route is not None:
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope.update(child)
                await route.handle(scope, receive, send)
                return
        scope["app"] = self  # so that what is not here is an HTTPException
        await super().app(scope, receive, send)


def _unrouted(error: HTTPException) -> HttpProblem:
    """Return the problem of a request for a path or with a method that is not here."""
    words = "there is nothing here; GET /openapi.json lists what there is"
    if allowed := (error.headers or {}).get("Allow"):
        words = f"this address takes {allowed}; GET /openapi.json says of what"
    reason = _REASONS.get(error.status_code, "BAD_REQUEST")
    return HttpProblem(error.status_code, reason, words)


def _answering(endpoint: Callable[[Request], Awaitable[Response]]) -> ASGIApp:
    """Return the application that answers with what an endpoint returns; its errors are those of Problems."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)

    return app


def _route_of(scope: Scope) -> str:
    """Return the route of a request, without what its client wrote."""
    route = scope.get("route")
    return route.path if isinstance(route, GatewayRoute) else "unknown"
