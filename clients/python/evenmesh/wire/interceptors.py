"""Intercept outgoing calls of every kind: one or many requests, one or many responses."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

import grpc

Continuation: TypeAlias = Callable[..., Any]
"""Makes the call, or hands it to the next interceptor, with details and the request or requests."""

Intercept: TypeAlias = Callable[[Continuation, Any, Any], Awaitable[Any]]
"""Intercepts a call of any kind: from a continuation, details and a request or requests to the call."""

_KINDS: Final = {
    "intercept_unary_unary": grpc.aio.UnaryUnaryClientInterceptor,
    "intercept_unary_stream": grpc.aio.UnaryStreamClientInterceptor,
    "intercept_stream_unary": grpc.aio.StreamUnaryClientInterceptor,
    "intercept_stream_stream": grpc.aio.StreamStreamClientInterceptor,
}


def of_every_kind(intercept: Intercept) -> list[grpc.aio.ClientInterceptor]:
    """Return an interceptor for each kind of call; grpc.aio registers one for one kind only."""
    return [type(kind.__name__, (kind,), {name: staticmethod(intercept)})() for name, kind in _KINDS.items()]


def async_details(
    details: grpc.aio.ClientCallDetails, pairs: Iterable[tuple[str, str | bytes]]
) -> grpc.aio.ClientCallDetails:
    """Return the details of a call with more metadata."""
    metadata = grpc.aio.Metadata(*(details.metadata or ()), *pairs)
    return grpc.aio.ClientCallDetails(
        details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
    )


class SyncCallDetails(NamedTuple):
    """The details of a call on a channel without an event loop."""

    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None

    @classmethod
    def adding(cls, details: Any, *pairs: tuple[str, str | bytes]) -> SyncCallDetails:
        """Return the details of a call with more metadata."""
        return cls(
            details.method,
            details.timeout,
            (*(details.metadata or ()), *pairs),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


class SyncInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Intercepts calls of every kind on a channel without an event loop."""

    @abstractmethod
    def intercept(self, continuation: Continuation, details: Any, request: Any) -> Any:
        """Make the call."""

    def intercept_unary_unary(self, continuation: Continuation, details: Any, request: Any) -> Any:
        return self.intercept(continuation, details, request)

    intercept_unary_stream: Callable[..., Any] = intercept_unary_unary
    intercept_stream_unary: Callable[..., Any] = intercept_unary_unary
    intercept_stream_stream: Callable[..., Any] = intercept_unary_unary
