"""Who calls and until when: what a request says before its body is read."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.requests import Request

from evenmesh.wire.credentials import CREDENTIAL_KEY
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import InvalidField, PermissionDenied, Unauthenticated
from evenmesh_gateway.http.events import HungUpError, hung_up
from evenmesh_gateway.methods import PublicMethod
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.security import audit
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.access import roles_of
from evenmesh_kit.security.authentication import Authentication, NoAuthentication
from evenmesh_kit.security.caller import Role

TIMEOUT_HEADER: Final = "X-Request-Timeout"
"""Header of the time that a request may take. Seconds."""
_TRACE: Final = ("traceparent", "tracestate")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """What all calls that one request leads to have in common.

    Attributes:
        deadline: when the last of them must end.
        metadata: sent with each: the caller's credential, and its trace where the gateway records none.
    """

    deadline: Deadline
    metadata: tuple[tuple[str, str | bytes], ...]


class CallReader:
    """Reads from the headers of a request who calls and until when.

    With keys or tokens of its own it refuses strangers before it reads their bodies. The services behind it
    check the same credential again, which it forwards.

    Args:
        settings: default and longest times.
        authentication: who is known here.
        forwards_trace: whether to send the trace headers on as they are, as nothing else does.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        authentication: Authentication | NoAuthentication,
        *,
        forwards_trace: bool,
    ) -> None:
        self._settings = settings
        self._authentication = authentication
        self._forwards_trace = forwards_trace

    @property
    def knows_callers(self) -> bool:
        """Return whether callers are known here; otherwise the services behind it alone know them."""
        return isinstance(self._authentication, Authentication)

    async def call(
        self,
        headers: Mapping[str, str],
        *methods: PublicMethod,
        peer: str = "",
        timeout_s: float | None = None,
        default_s: float | None = None,
    ) -> Call:
        """Return the call that the headers of a request say, and make its caller the current one.

        Args:
            headers: by lower-case name.
            methods: what the request calls.
            peer: address of the connection, for the audit log.
            timeout_s: time that the protocol of the request gives it; None for the header's.
            default_s: time of a request that gives none; None for the setting's. Seconds.

        Raises:
            Unauthenticated: no credential, or one that is not known here.
            PermissionDenied: the caller has no role for one of the methods.
            InvalidField: the time is no number of seconds.
        """
        credential = headers.get(CREDENTIAL_KEY, "")
        if isinstance(self._authentication, Authentication):
            await self._authenticate(self._authentication, credential, methods, peer)
        metadata = [(CREDENTIAL_KEY, _ascii(credential))] if credential else []
        if self._forwards_trace:
            metadata += [
                (name, value) for name in _TRACE if (value := headers.get(name, "")) and value.isascii()
            ]
        longest = self._settings.max_call_s
        if any(method.streams for method in methods):
            longest = self._settings.max_stream_s
        if timeout_s is None:
            default_s = self._settings.default_deadline_s if default_s is None else default_s
            timeout_s = _timeout(headers.get(TIMEOUT_HEADER.lower()), default_s)
        return Call(Deadline.after(min(timeout_s, longest)), tuple(metadata))

    async def _authenticate(
        self, known: Authentication, credential: str, methods: tuple[PublicMethod, ...], peer: str
    ) -> None:
        path = methods[0].path if methods else ""
        try:
            caller = await known.by_credential(credential)
        except Unauthenticated as error:
            audit.record("login_refused", None, path, peer, error.reason)
            raise
        for method in methods:
            allowed = roles_of(method.path)
            if not caller.may(allowed):
                audit.record("denied", caller, method.path, peer, "NO_ROLE")
                roles = ", ".join(sorted(allowed | {Role.ADMIN}))
                raise PermissionDenied(f"{caller.name} needs one of the roles {roles}")
        callers.enter(caller)


def peer_of(request: Request) -> str:
    """Return the address of a connection, for logs."""
    return f"{request.client.host}:{request.client.port}" if request.client is not None else ""


async def unless_hung_up(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` returns; cancel it when the client hangs up. The body must have been read.

    Raises:
        HungUpError: the client hung up.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(hung_up(request.receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HungUpError
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _timeout(header: str | None, default_s: float) -> float:
    if header is None:
        return default_s
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidField(TIMEOUT_HEADER, f"must be seconds above 0, such as 2.5, got {header[:64]!r}")
    return seconds


def _ascii(credential: str) -> str:
    """Return a credential that can be sent as metadata; others are known nowhere."""
    if not credential.isascii() or not credential.isprintable():
        raise Unauthenticated("UNKNOWN_KEY", "the API key is not known here")
    return credential
