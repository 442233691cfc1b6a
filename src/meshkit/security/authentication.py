"""The door of a service: a credential is checked before a call begins, and the role before the servicer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from meshkit.errors import PermissionDenied, Unauthenticated
from meshkit.handlers import Behaviour, Context, Handler, HandlerInterceptor, behaviour_of, with_behaviour
from meshkit.security import caller as callers
from meshkit.security.access import roles_of
from meshkit.security.caller import ANYONE, DEFAULT_TENANT, Caller, Role, tenant_name
from meshkit.security.keys import PREFIX, ApiKeys

if TYPE_CHECKING:
    from meshkit.security.tokens import Tokens

CREDENTIAL_KEY: Final = "authorization"
"""Metadata with a credential: ``Bearer`` and an API key or a token."""
TENANT_KEY: Final = "ragmesh-tenant"
"""Metadata by which another service of the mesh says for which tenant it calls; taken from services alone."""
_BEARER: Final = "bearer "


class Authentication(HandlerInterceptor):
    """Server interceptor that finds out who calls, and whether that caller may.

    Stands inside the guard, which turns what it raises into a status. gRPC's own services (health,
    reflection) stay open: they tell nothing of any tenant.

    Args:
        keys: API keys that are taken; None for none.
        tokens: checks JSON Web Tokens; None for none.
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

    def wrap(self, method: str, handler: Handler) -> Handler:
        return with_behaviour(handler, self._checked(method, behaviour_of(handler)))

    def _checked(self, method: str, behaviour: Behaviour) -> Behaviour:
        allowed = roles_of(method)

        async def checked(request: Any, context: Context) -> Any:
            caller = await self._caller(context)
            if not caller.may(allowed):
                roles = ", ".join(sorted(allowed | {Role.ADMIN}))
                raise PermissionDenied(f"{caller.name} may not: it needs one of the roles {roles}")
            callers.enter(caller)
            return await behaviour(request, context)

        return checked

    async def _caller(self, context: Context) -> Caller:
        metadata = _metadata(context)
        caller = self._by_certificate(context)
        if caller is None:
            caller = await self._by_credential(metadata.get(CREDENTIAL_KEY, ""))
        if Role.SERVICE in caller.roles:
            tenant = tenant_name(metadata.get(TENANT_KEY, DEFAULT_TENANT), TENANT_KEY)
            return Caller(caller.name, tenant, caller.roles)
        return caller

    def _by_certificate(self, context: Context) -> Caller | None:
        for name in _names(context) if self._services else ():
            if name in self._services:
                return Caller(name, DEFAULT_TENANT, frozenset({Role.SERVICE}))
        return None

    async def _by_credential(self, value: str) -> Caller:
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


class Unguarded(HandlerInterceptor):
    """Server interceptor of a service that asks nobody who they are: it believes who reaches it.

    So do the services behind the one that is exposed, where they listen to their own machine alone: that one
    says for which tenant it calls, and what belongs to tenants stays apart.
    """

    def wrap(self, method: str, handler: Handler) -> Handler:
        behaviour = behaviour_of(handler)

        async def believed(request: Any, context: Context) -> Any:
            tenant = _metadata(context).get(TENANT_KEY)
            if tenant is not None:
                callers.enter(replace(ANYONE, tenant=tenant_name(tenant, TENANT_KEY)))
            return await behaviour(request, context)

        return with_behaviour(handler, believed)


def _metadata(context: Context) -> dict[str, str]:
    return {
        key: value if isinstance(value, str) else value.decode(errors="replace")
        for key, value in context.invocation_metadata() or ()
    }


def _names(context: Context) -> Iterator[str]:
    """What the caller's certificate, which a trusted authority signed, says it is."""
    for value in context.auth_context().get("x509_subject_alternative_name", ()):
        yield value.decode(errors="replace")
