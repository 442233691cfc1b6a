"""JSON Web Tokens: callers that someone else vouches for."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import jwt

from meshkit.errors import InvalidField, Unauthenticated, Unavailable
from meshkit.file_watch import WatchedFiles
from meshkit.security.caller import DEFAULT_TENANT, Caller, Role, tenant_name

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures that are taken: of public keys. A shared secret would let everyone who checks forge."""
LEEWAY_S: Final = 30.0
"""How far clocks may differ. Seconds."""
_KEYS_LAST_S: Final = 300.0
_FETCH_S: Final = 5.0
_THIS_MACHINE: Final = ("127.0.0.1", "localhost", "::1")
_log = logging.getLogger("ragmesh.meshkit.tokens")


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


class _Issuer(jwt.PyJWKClient):
    """Keys that an address has; :class:`meshkit.file_watch.Watched`, of how asking it went.

    Keys that were had are in force for five minutes; after that, and while the address has none, no token can
    be checked.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address, lifespan=_KEYS_LAST_S, timeout=_FETCH_S)
        self._failed_at = -math.inf
        self.failures = 0

    def fetch_data(self) -> Any:
        """What the address answers.

        Raises:
            PyJWKClientConnectionError: nothing, or no set of keys.
        """
        try:
            found = super().fetch_data()
        except (jwt.PyJWTError, OSError, ValueError, RecursionError) as error:
            if not self.stale():
                _log.warning("keys of tokens cannot be had: %s", error)
            self.failures += 1
            self._failed_at = time.monotonic()
            # Of whatever kind: it is not the token's fault.
            raise jwt.PyJWKClientConnectionError(str(error)) from error
        self._failed_at = -math.inf
        return found

    def stale(self) -> bool:
        """Whether it had no keys when it was last asked, if that is less than five minutes ago.

        It is asked when a token comes and not for this: who looks at metrics would wait for it.
        """
        return time.monotonic() - self._failed_at < _KEYS_LAST_S


class Tokens:
    """Checks tokens against a set of public keys (JWKS).

    Args:
        source: file, or ``https://`` address, which is asked again for keys that are not known and after five
            minutes; ``http://`` for this machine only.
        claims: what tokens must say.

    Attributes:
        keys: the set, as it is read again.

    Raises:
        TokensError: a file that is no set of keys, or an address that anyone between could answer for.
    """

    def __init__(self, source: str, claims: Claims) -> None:
        self._claims = claims
        address = urlsplit(source)
        self.keys: _Issuer | WatchedFiles[jwt.PyJWKSet]
        if address.scheme == "https" or (address.scheme == "http" and address.hostname in _THIS_MACHINE):
            self.keys = _Issuer(source)
        elif "://" in source:
            raise TokensError(f"{source}: keys must come from a file or an https:// address")
        else:
            path = Path(source)
            self.keys = WatchedFiles((path,), partial(_read, path), TokensError, every_s=0.0)

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
        if isinstance(self.keys, _Issuer):
            return (await asyncio.to_thread(self.keys.get_signing_key_from_jwt, token)).key
        name = jwt.get_unverified_header(token).get("kid")
        for key in self.keys.content().keys:
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
