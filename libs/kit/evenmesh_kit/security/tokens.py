"""JSON Web Tokens: callers that an identity provider vouches for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from evenmesh.wire.errors import InvalidField, Unauthenticated
from evenmesh.wire.file_watch import WatchedFiles
from evenmesh_kit.security.caller import AgentName, Caller, Role, agent_names, tenant_name
from evenmesh_kit.security.key_server import KeyServer

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Accepted signatures, all of public keys: with a shared secret everyone who verifies could forge."""
LEEWAY_S: Final = 30.0
"""Largest accepted difference of clocks. Seconds."""
_THIS_MACHINE: Final = ("127.0.0.1", "localhost", "::1")


class TokensError(Exception):
    """Raised for a key set that cannot be used; names it and says why."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token must claim, and which claims hold its tenant and roles.

    Attributes:
        audience: required value of ``aud``.
        issuer: required value of ``iss``; empty for any.
        tenant: claim with the tenant.
        roles: claim with the roles: a list, or words in one string.
        provider: claim with the provider whose statements the role ``provider`` may read.
        agents: claim with the only agents that its bearer may act as: a list of ``TASK/MODEL``, or one in a
            string; a token without it may act as every agent of its tenant.
        default_tenant: tenant of tokens that claim none; empty to refuse them.
    """

    audience: str
    issuer: str = ""
    tenant: str = "evenmesh_tenant"
    roles: str = "evenmesh_roles"
    provider: str = "evenmesh_provider"
    agents: str = "evenmesh_agents"
    default_tenant: str = ""


class Tokens:
    """Verifies tokens with a set of public keys (JWKS).

    Args:
        source: file, or ``https://`` address (:class:`KeyServer`); ``http://`` for this machine only.
        claims: what tokens must claim.
        clock: monotonic seconds; for tests.

    Attributes:
        keys: the reloaded key set.

    Raises:
        TokensError: the file is no key set, or the address is not ``https://``.
    """

    def __init__(self, source: str, claims: Claims, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._claims = claims
        address = urlsplit(source)
        self.keys: KeyServer | WatchedFiles[jwt.PyJWKSet]
        if address.scheme == "https" or (address.scheme == "http" and address.hostname in _THIS_MACHINE):
            self.keys = KeyServer(source, clock=clock)
        elif "://" in source:
            raise TokensError(f"{source}: keys must come from a file or an https:// address")
        else:
            path = Path(source)
            self.keys = WatchedFiles((path,), partial(_read, path), TokensError, every_s=0.0)

    async def caller(self, token: str) -> Caller:
        """Return the caller that a token vouches for.

        Raises:
            Unauthenticated: its signature, its time or its claims are invalid, or it claims no tenant.
            Unavailable: the keys cannot be fetched now.
        """
        try:
            name = jwt.get_unverified_header(token).get("kid")
            claims = self._verified(token, name, await self._keys_for(name))
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("EXPIRED", "the token has expired") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            # A header may be nested deeply (RecursionError) or name another key's algorithm (TypeError).
            raise Unauthenticated("INVALID_TOKEN", f"the token is not valid: {error}") from None
        return self._read_claims(claims)

    async def _keys_for(self, name: str | None) -> list[Any]:
        """Return the keys of that id; of a file all, for a token that names none."""
        if isinstance(self.keys, KeyServer):
            return [(await self.keys.key(name)).key]
        return [key.key for key in self.keys.content().keys if name is None or key.key_id == name]

    def _verified(self, token: str, name: str | None, keys: list[Any]) -> dict[str, Any]:
        """Return the claims of a token that one of the keys has signed."""
        first: Exception | None = None
        for key in keys:
            try:
                claims: dict[str, Any] = jwt.decode(
                    token,
                    key,
                    algorithms=list(ALGORITHMS),
                    audience=self._claims.audience,
                    issuer=self._claims.issuer or None,
                    leeway=LEEWAY_S,
                    options={"require": ["exp", "aud", "sub"]},
                )
            except (jwt.InvalidSignatureError, jwt.InvalidKeyError, TypeError) as error:
                first = first or error
            else:
                return claims
        raise first or jwt.InvalidKeyError(f"there is no key {name!r}")

    def _read_claims(self, claims: dict[str, Any]) -> Caller:
        roles = claims.get(self._claims.roles, [])
        words = roles.split() if isinstance(roles, str) else roles
        if not isinstance(words, list):
            raise Unauthenticated(
                "INVALID_TOKEN", f"the token is not valid: {self._claims.roles}: must be a list or a string"
            )
        known = frozenset(Role(word) for word in words if word in Role.__members__.values())
        # A service calls for any tenant, so it must have a key or certificate of this mesh.
        known -= {Role.SERVICE}
        tenant = claims.get(self._claims.tenant, self._claims.default_tenant)
        try:
            named = tenant_name(str(tenant), self._claims.tenant)
            agents = self._agents(claims)
        except InvalidField as error:
            raise Unauthenticated("INVALID_TOKEN", f"the token is not valid: {error}") from None
        provider = str(claims.get(self._claims.provider, "")) if Role.PROVIDER in known else ""
        return Caller(str(claims["sub"]), named, known, provider, agents)

    def _agents(self, claims: dict[str, Any]) -> frozenset[AgentName] | None:
        """Return the only agents that a token may act as; None for any.

        Raises:
            InvalidField: the claim is there and names none: to be safe, that is not taken for any.
        """
        if self._claims.agents not in claims:
            return None
        value = claims[self._claims.agents]
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
            raise InvalidField(self._claims.agents, "must be a list of TASK/MODEL")
        return agent_names(names, self._claims.agents)


def _read(path: Path) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_dict(json.loads(path.read_bytes()))
    except OSError as error:
        raise TokensError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, RecursionError, jwt.PyJWTError) as error:
        raise TokensError(f"{path}: not a JSON Web Key Set: {error}") from None
