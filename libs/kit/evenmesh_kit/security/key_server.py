"""The public keys at an address, fetched in the background."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final

import httpx
import jwt

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.security import audit

_REFRESH_S: Final = 300.0
_LAST_S: Final = 600.0
_COOL_DOWN_S: Final = 30.0
_FETCH_S: Final = 5.0
_MOST_BYTES: Final = 2**20
_log = logging.getLogger("evenmesh.kit.tokens")


class KeyServer:
    """A JSON Web Key Set at an address; a :class:`evenmesh.wire.file_watch.Watched` of its requests.

    A known key is found without waiting. Keys are fetched again in the background after five minutes, and
    are valid for ten. An unknown key causes a request, at most one at a time and one in 30 s after the last,
    whether that succeeded or not; meanwhile it is refused at once.

    Args:
        address: where the key set is.
        clock: monotonic seconds; for tests.
        fetch_s: bound of a request's whole duration. Seconds.

    Attributes:
        failures: how often a request failed.
    """

    def __init__(
        self, address: str, *, clock: Callable[[], float] = time.monotonic, fetch_s: float = _FETCH_S
    ) -> None:
        self._address = address
        self._fetch_s = fetch_s
        self._trust = ssl.create_default_context()  # the machine's authorities, not those of a package
        self._clock = clock
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetched_at = self._tried_at = self._failed_at = -math.inf
        self._refreshing: asyncio.Task[None] | None = None
        self.failures = 0

    async def key(self, name: str | None) -> jwt.PyJWK:
        """Return the key of that id.

        Raises:
            InvalidKeyError: there is none.
            Unavailable: the keys cannot be fetched now.
        """
        age = self._clock() - self._fetched_at
        found = self._keys.get(name or "")
        if found is not None and age < _LAST_S:
            if age >= _REFRESH_S:
                self._refresh()
            return found
        refreshing = self._refresh()
        if refreshing is not None:
            # Waits without cancelling it for the others.
            await asyncio.wait((refreshing,), timeout=2 * self._fetch_s)
        if self._clock() - self._fetched_at >= _LAST_S:
            raise Unavailable("NO_KEYS", "the keys that verify tokens cannot be fetched now")
        found = self._keys.get(name or "")
        if found is None:
            raise jwt.InvalidKeyError(f"there is no key {name!r}")
        return found

    def stale(self) -> bool:
        """Return whether the last request failed within the past five minutes; send none."""
        return self._clock() - self._failed_at < _REFRESH_S

    def _refresh(self) -> asyncio.Task[None] | None:
        """Return the running request, or begin one; None during the cool-down."""
        if self._refreshing is None and self._clock() - self._tried_at >= _COOL_DOWN_S:
            self._refreshing = asyncio.create_task(self._fetch())
            self._refreshing.add_done_callback(self._ended)
        return self._refreshing

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._refreshing = None

    async def _fetch(self) -> None:
        try:
            keys = await self._request()
        except Exception as error:  # noqa: BLE001 - whatever the server answers: the next request is later
            if not self.stale():
                late = isinstance(error, (TimeoutError, httpx.TimeoutException))
                why = f"no whole reply within {self._fetch_s:g} s" if late else error
                _log.warning("the keys that verify tokens cannot be fetched: %s", why)
            self.failures += 1
            self._failed_at = self._tried_at = self._clock()
            return
        before, self._keys = self._keys, keys
        self._fetched_at = self._tried_at = self._clock()
        self._failed_at = -math.inf
        if before:
            for what, name in audit.changes(dict.fromkeys(before), dict.fromkeys(keys)):
                audit.record_change("token_key", what, name)

    async def _request(self) -> Mapping[str, jwt.PyJWK]:
        # httpx bounds each wait alone, so a server that sends a byte now and then would never end.
        async with asyncio.timeout(self._fetch_s):
            found = jwt.PyJWKSet.from_dict(json.loads(await self._body())).keys
        keys = {one.key_id: one for one in found if one.key_id and one.public_key_use in ("sig", None)}
        if not keys:
            raise jwt.PyJWKSetError("the set has no key with an id that signs")
        return keys

    async def _body(self) -> bytes:
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        async with (
            httpx.AsyncClient(headers=headers, verify=self._trust, timeout=self._fetch_s) as client,
            client.stream("GET", self._address) as reply,
        ):
            reply.raise_for_status()  # a redirect, too: it would lead to an address that nobody has set
            body = bytearray()
            async for part in reply.aiter_raw():
                body += part
                if len(body) > _MOST_BYTES:
                    raise ValueError(f"the reply is larger than {_MOST_BYTES:,} bytes")
            return bytes(body)
