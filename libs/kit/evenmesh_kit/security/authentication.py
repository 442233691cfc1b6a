"""Authenticate callers by certificate, API key or token, and check their role before the servicer runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from evenmesh.wire.credentials import AGENTS_KEY, CREDENTIAL_KEY, TENANT_KEY
from evenmesh.wire.errors import PermissionDenied, Unauthenticated
from evenmesh_kit.rpc.handlers import Behaviour, Context, Handler, HandlerInterceptor
from evenmesh_kit.security import audit
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.access import roles_of
from evenmesh_kit.security.caller import (
    ANYONE,
    DEFAULT_TENANT,
    AgentName,
    Caller,
    Role,
    agent_names,
    tenant_name,
)
from evenmesh_kit.security.keys import PREFIX, ApiKeys

if TYPE_CHECKING:
    from evenmesh_kit.security.tokens import Tokens

_BEARER: Final = "bearer "


class Authentication(HandlerInterceptor):
    """Server interceptor that authenticates the caller and authorises it for the method.

    Runs inside the guard, which turns its errors into statuses. gRPC's own services (health, reflection) stay
    open, as they reveal nothing about tenants.

    Args:
        keys: accepted API keys; None for none.
        tokens: verifier of JSON Web Tokens; None for none.
        services: names in certificates (DNS or URI) whose holders are services of this mesh.
    """

    def __init__(
        self,
        keys: ApiKeys | None = None,
        tokens: Tokens | None = None,
        services: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self._keys = keys
        self._tokens = tokens
        self._services = services

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        allowed = roles_of(method)

        async def checked(request: Any, context: Context) -> Any:
            try:
                caller = await self._caller(context)
            except Unauthenticated as error:
                audit.record("login_refused", None, method, context.peer(), error.reason)
                raise
            if not caller.may(allowed):
                audit.record("denied", caller, method, context.peer(), "NO_ROLE")
                roles = ", ".join(sorted(allowed | {Role.ADMIN}))
                raise PermissionDenied(f"{caller.name} needs one of the roles {roles}")
            callers.enter(caller)
            audit.enter(method, context)
            return await behaviour(request, context)

        return checked

    async def _caller(self, context: Context) -> Caller:
        metadata = _metadata(context)
        caller = self._by_certificate(context)
        if caller is None:
            caller = await self.by_credential(metadata.get(CREDENTIAL_KEY, ""))
        if Role.SERVICE in caller.roles:
            tenant = tenant_name(metadata.get(TENANT_KEY, DEFAULT_TENANT), TENANT_KEY)
            return Caller(caller.name, tenant, caller.roles, caller.provider, _agents(metadata))
        return caller

    def _by_certificate(self, context: Context) -> Caller | None:
        for name in _names(context) if self._services else ():
            if name in self._services:
                return Caller(name, DEFAULT_TENANT, frozenset({Role.SERVICE}))
        return None

    async def by_credential(self, value: str) -> Caller:
        """Return who holds the credential of an ``authorization`` header, ``Bearer`` and a key or a token.

        Raises:
            Unauthenticated: it is missing, unknown or expired.
        """
        if value[: len(_BEARER)].lower() != _BEARER:
            raise Unauthenticated(
                "NO_CREDENTIAL", f"send 'Bearer KEY_OR_TOKEN' in the metadata {CREDENTIAL_KEY!r}"
            )
        credential = value[len(_BEARER) :].strip()
        if credential.startswith(PREFIX) and self._keys is not None:
            return self._keys.caller(credential)
        if self._tokens is not None:
            return await self._tokens.caller(credential)
        raise Unauthenticated("UNKNOWN_KEY", "the API key is not known here")


class NoAuthentication(HandlerInterceptor):
    """Server interceptor that trusts every caller, and the tenant and the agents that a caller names.

    For services that listen on their own machine alone, behind an exposed one: that one names the tenant it
    calls for and the agents that its caller is bound to, so that the data of tenants stay apart.
    """

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        async def trusted(request: Any, context: Context) -> Any:
            metadata = _metadata(context)
            if TENANT_KEY in metadata or AGENTS_KEY in metadata:
                tenant = tenant_name(metadata.get(TENANT_KEY, DEFAULT_TENANT), TENANT_KEY)
                callers.enter(replace(ANYONE, tenant=tenant, agents=_agents(metadata)))
                audit.enter(method, context)
            return await behaviour(request, context)

        return trusted


def _metadata(context: Context) -> dict[str, str]:
    """Return the metadata as text.

    Raises:
        Unauthenticated: a credential, a tenant or agents are given more than once, so that another program on
            the way may have checked another one.
    """
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if key in found and key in (CREDENTIAL_KEY, TENANT_KEY, AGENTS_KEY):
            raise Unauthenticated("TWO_CREDENTIALS", f"send {key!r} once in the metadata, not several times")
        found[key] = value if isinstance(value, str) else value.decode(errors="replace")
    return found


def _agents(metadata: Mapping[str, str]) -> frozenset[AgentName] | None:
    """Return the agents that the caller of a service is bound to; None for any."""
    named = metadata.get(AGENTS_KEY)
    return None if named is None else agent_names(named.split("\n"), AGENTS_KEY)


def _names(context: Context) -> Iterator[str]:
    """Yield the names in the caller's certificate, which a trusted authority has signed."""
    for value in context.auth_context().get("x509_subject_alternative_name", ()):
        yield value.decode(errors="replace")
