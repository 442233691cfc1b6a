"""Credentials of outgoing calls: the credential of this process, and whom it serves: tenant and agents."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from evenmesh.wire.errors import InvalidField, Unavailable
from evenmesh.wire.interceptors import (
    Continuation,
    SyncCallDetails,
    SyncInterceptor,
    async_details,
    of_every_kind,
)

CREDENTIAL_KEY: Final = "authorization"
"""Metadata key of the credential: ``Bearer`` and an API key or a token."""

TENANT_KEY: Final = "evenmesh-tenant"
"""Metadata key in which a service of the mesh names the tenant it calls for; trusted from services alone."""

AGENTS_KEY: Final = "evenmesh-agents-bin"
"""Metadata key in which a service of the mesh names the agents that its caller is bound to, one a line.

Trusted from services alone. Binary, because ids of agents may be any text.
"""

acting_for: ContextVar[str] = ContextVar("evenmesh_acting_for", default="")
"""Tenant of the call being served, sent with every call made for it; empty outside one."""

acting_as: ContextVar[str] = ContextVar("evenmesh_acting_as", default="")
"""Agents that the caller of the call being served is bound to, one a line, sent with every call made for it.

Empty for a caller that is bound to none.
"""


class TokenFile:
    """A file with a renewable token, read at every call; a :class:`evenmesh.wire.file_watch.Watched`.

    An earlier token does not stay in use: calls fail while the file has none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failing = False
        self.failures = 0

    def read(self) -> str:
        """Return the token.

        Raises:
            Unavailable: the file cannot be read now.
        """
        try:
            text = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            self.failures += not self._failing
            self._failing = True
            why = error.strerror if isinstance(error, OSError) else "not a token"
            raise Unavailable("NO_CREDENTIAL", f"EVENMESH_TOKEN_FILE cannot be read: {why}") from None
        self._failing = False
        return text

    def stale(self) -> bool:
        """Return whether the file cannot be read now."""
        try:
            self.read()
        except Unavailable:
            return True
        return False


@dataclass(frozen=True, slots=True)
class Credential:
    """What a process proves its identity with when it calls.

    The credential of a service has the role SERVICE, and the tenant of the call it works for is sent with it,
    and the agents that its caller is bound to. The credential of a client already names both.

    Attributes:
        text: API key or token; empty for none.
        file: file to read it from at every call instead, for renewable tokens.
        tokens: reader of that file; None without one.

    Raises:
        InvalidField: the text is not printable ASCII, which metadata must be.
    """

    text: str = ""
    file: Path | None = None
    tokens: TokenFile | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (self.text.isascii() and self.text.isprintable()):
            raise InvalidField("api_key", "must be printable ASCII: is it the whole key, as it was made?")
        object.__setattr__(self, "tokens", None if self.file is None else TokenFile(self.file))

    @property
    def given(self) -> bool:
        """Return whether there is one."""
        return bool(self.text) or self.file is not None

    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Return the metadata of a call: the credential, and the tenant and the agents it is for.

        Raises:
            Unavailable: the file cannot be read now.
        """
        text = self.text if self.tokens is None else self.tokens.read()
        pairs: tuple[tuple[str, str | bytes], ...] = ((CREDENTIAL_KEY, f"Bearer {text}"),) if text else ()
        if tenant := acting_for.get():
            pairs = (*pairs, (TENANT_KEY, tenant))
        if agents := acting_as.get():
            pairs = (*pairs, (AGENTS_KEY, agents.encode()))
        return pairs


def async_interceptors(credential: Credential) -> list[grpc.aio.ClientInterceptor]:
    """Return interceptors that add a credential and the tenant to calls of every kind.

    A channel needs them without a credential too: a service may prove its identity by its certificate alone,
    and the tenant is sent with its calls.
    """

    async def intercept(continuation: Continuation, details: Any, request: Any) -> Any:
        return await continuation(async_details(details, credential.metadata()), request)

    return of_every_kind(intercept)


class CredentialInterceptor(SyncInterceptor):
    """Adds a credential and the tenant to calls of every kind on a channel without an event loop."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    def intercept(self, continuation: Continuation, details: Any, request: Any) -> Any:
        return continuation(SyncCallDetails.adding(details, *self._credential.metadata()), request)
