"""Credentials of calls that go out: whoever called, or what this process was given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc

from meshkit.errors import Unavailable
from meshkit.security import caller as callers
from meshkit.security.authentication import CREDENTIAL_KEY, TENANT_KEY

Q = TypeVar("Q")


class TokenFile:
    """A file with a token that is renewed, read at every call; :class:`meshkit.file_watch.Watched`.

    No token of before stays in force: calls fail while there is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failing = False
        self.failures = 0

    def read(self) -> str:
        """The token.

        Raises:
            Unavailable: the file cannot be read now.
        """
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            self.failures += not self._failing
            self._failing = True
            why = error.strerror if isinstance(error, OSError) else "not a token"
            raise Unavailable("NO_CREDENTIAL", f"RAGMESH_TOKEN_FILE cannot be read: {why}") from None
        self._failing = False
        return text

    def stale(self) -> bool:
        """Whether it cannot be read now."""
        try:
            self.read()
        except Unavailable:
            return True
        return False


@dataclass(frozen=True, slots=True)
class Credential:
    """What a process shows when it calls.

    A service's own credential has the role SERVICE, and the tenant of the call that it works for goes with
    it; of a client's credential the tenant is a part.

    Attributes:
        text: API key or token; empty for none.
        file: file to read it from at every call instead, for tokens that are renewed.
        tokens: that file as it is read; None without one.
    """

    text: str = ""
    file: Path | None = None
    tokens: TokenFile | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", None if self.file is None else TokenFile(self.file))

    @property
    def given(self) -> bool:
        """Whether there is one."""
        return bool(self.text) or self.file is not None

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with a call.

        Raises:
            Unavailable: the file cannot be read now.
        """
        text = self.text if self.tokens is None else self.tokens.read()
        pairs = ((CREDENTIAL_KEY, f"Bearer {text}"),) if text else ()
        caller = callers.current()
        return pairs if caller is callers.ANYONE else (*pairs, (TENANT_KEY, caller.tenant))


class _Shown:
    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def _with(self, details: grpc.aio.ClientCallDetails) -> grpc.aio.ClientCallDetails:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), *self._credential.metadata())
        return grpc.aio.ClientCallDetails(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready
        )


class ShownUnaryUnary(_Shown, grpc.aio.UnaryUnaryClientInterceptor):
    """Adds a credential to calls with one request and one response."""

    async def intercept_unary_unary(
        self, continuation: Callable[[Any, Q], Awaitable[Any]], client_call_details: Any, request: Q
    ) -> Any:
        return await continuation(self._with(client_call_details), request)


class ShownUnaryStream(_Shown, grpc.aio.UnaryStreamClientInterceptor):
    """Adds a credential to calls with one request and a stream of responses."""

    async def intercept_unary_stream(
        self, continuation: Callable[[Any, Q], Awaitable[Any]], client_call_details: Any, request: Q
    ) -> Any:
        return await continuation(self._with(client_call_details), request)


class ShownStreamUnary(_Shown, grpc.aio.StreamUnaryClientInterceptor):
    """Adds a credential to calls with a stream of requests and one response."""

    async def intercept_stream_unary(
        self,
        continuation: Callable[[Any, Any], Awaitable[Any]],
        client_call_details: Any,
        request_iterator: Any,
    ) -> Any:
        return await continuation(self._with(client_call_details), request_iterator)


class ShownStreamStream(_Shown, grpc.aio.StreamStreamClientInterceptor):
    """Adds a credential to calls with a stream of requests and a stream of responses."""

    async def intercept_stream_stream(
        self,
        continuation: Callable[[Any, Any], Awaitable[Any]],
        client_call_details: Any,
        request_iterator: Any,
    ) -> Any:
        return await continuation(self._with(client_call_details), request_iterator)


def interceptors(credential: Credential) -> list[grpc.aio.ClientInterceptor]:
    """One for each kind of call. Without a credential too: the tenant of the call that is worked for goes
    with it, and a certificate may say that it is a service that says so."""
    kinds = (ShownUnaryUnary, ShownUnaryStream, ShownStreamUnary, ShownStreamStream)
    return [kind(credential) for kind in kinds]


class _SyncDetails(NamedTuple):
    method: str
    timeout: float | None
    metadata: tuple[tuple[str, str | bytes], ...] | None
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: grpc.Compression | None


class ShownSync(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds a credential to calls of all kinds on a channel without event loop."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def _call(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        metadata = (*(details.metadata or ()), *self._credential.metadata())
        shown = _SyncDetails(
            details.method,
            details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(shown, request)

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        return self._call(continuation, client_call_details, request)

    def intercept_unary_stream(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        return self._call(continuation, client_call_details, request)

    def intercept_stream_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return self._call(continuation, client_call_details, request_iterator)

    def intercept_stream_stream(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return self._call(continuation, client_call_details, request_iterator)
