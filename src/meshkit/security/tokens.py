"""JSON Web Tokens: callers that someone else vouches for."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from meshkit.errors import InvalidField, Unauthenticated, Unavailable
from meshkit.security.caller import DEFAULT_TENANT, Caller, Role, tenant_name

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures that are taken: of public keys. A shared secret would let everyone who checks forge."""
LEEWAY_S: Final = 30.0
"""How far clocks may differ. Seconds."""
_KEYS_LAST_S: Final = 300.0
_FETCH_S: Final = 5.0
_THIS_MACHINE: Final = ("127.0.0.1", "localhost", "::1")


class TokensError(Exception):
    """A set of keys that cannot be read; says what and why."""


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token must say, and where it says what it allows.

    Attributes:
        audience: value that ``aud`` must have.
        issuer: value that ``iss`` must have; empty for any.
        tenant: claim with the tenant.
        roles: claim with the roles: a list, or words in one string.
    """

    audience: str
    issuer: str = ""
    tenant: str = "ragmesh_tenant"
    roles: str = "ragmesh_roles"


class Tokens:
    """Checks tokens against a set of public keys (JWKS).

    Args:
        source: file, or ``https://`` address, which is asked again for keys that are not known and after five
            minutes; ``http://`` for this machine only.
        claims: what tokens must say.

    Raises:
        TokensError: a file that is no set of keys, or an address that anyone between could answer for.
    """

    def __init__(self, source: str, claims: Claims) -> None:
        self._claims = claims
        self._remote: jwt.PyJWKClient | None = None
        self._path = Path(source)
        address = urlsplit(source)
        if address.scheme == "https" or (address.scheme == "http" and address.hostname in _THIS_MACHINE):
            self._remote = jwt.PyJWKClient(source, lifespan=_KEYS_LAST_S, timeout=_FETCH_S)
        elif "://" in source:
            raise TokensError(f"{source}: keys must come from a file or an https:// address")
        else:
            self._keys = _read(self._path)
            self._seen = self._path.stat().st_mtime_ns

    async def caller(self, token: str) -> Caller:
        """Whom the token vouches for.

        Raises:
            Unauthenticated: its signature, its time or what it says is not in order.
            Unavailable: the keys cannot be had now.
        """
        try:
            key = await self._key(token)
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._claims.audience,
                issuer=self._claims.issuer or None,
                leeway=LEEWAY_S,
                options={"require": ["exp", "aud", "sub"]},
            )
        except jwt.PyJWKClientConnectionError:
            raise Unavailable("NO_KEYS", "the keys that tokens are checked with cannot be had now") from None
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("EXPIRED", "the token has expired") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
            # The last two of a header that is nested deeply, or names an algorithm of another kind of key.
            raise Unauthenticated("INVALID_TOKEN", f"the token is not valid: {error}") from None
        return self._read_claims(claims)

    async def _key(self, token: str) -> Any:
        if self._remote is not None:
            return (await asyncio.to_thread(self._remote.get_signing_key_from_jwt, token)).key
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._seen:
                self._keys, self._seen = _read(self._path), stamp
        except (OSError, TokensError):
            pass  # the keys before stay in force while the file is being replaced
        name = jwt.get_unverified_header(token).get("kid")
        for key in self._keys.keys:
            if name is None or key.key_id == name:
                return key.key
        raise jwt.InvalidKeyError(f"there is no key {name!r}")

    def _read_claims(self, claims: dict[str, Any]) -> Caller:
        roles = claims.get(self._claims.roles, [])
        words = roles.split() if isinstance(roles, str) else roles
        if not isinstance(words, list):
            raise Unauthenticated(
                "INVALID_TOKEN", f"the token is not valid: {self._claims.roles}: must be a list or a string"
            )
        known = frozenset(Role(word) for word in words if word in Role.__members__.values())
        # A service speaks for any tenant, so it proves itself with a key or certificate of this mesh.
        known -= {Role.SERVICE}
        tenant = claims.get(self._claims.tenant, DEFAULT_TENANT)
        try:
            return Caller(str(claims["sub"]), tenant_name(str(tenant), self._claims.tenant), known)
        except InvalidField as error:
            raise Unauthenticated("INVALID_TOKEN", f"the token is not valid: {error}") from None


def _read(path: Path) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_dict(json.loads(path.read_bytes()))
    except OSError as error:
        raise TokensError(f"{path}: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, RecursionError, jwt.PyJWTError) as error:
        raise TokensError(f"{path}: not a JSON Web Key Set: {error}") from None
