"""Ask model servers from time to time whether they answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, MeshError
from evenmesh_kit.compute.tasks import cancel
from evenmesh_kit.remote.client import Checked, RemoteClient
from evenmesh_kit.remote.errors import MalformedReply, ServerUnavailable

_WAIT_S: Final = 5.0
_log = logging.getLogger("evenmesh.kit.remote")


def serves(checked: Checked) -> bool:
    """Return whether an endpoint serves calls, by what it answered to a check."""
    return checked.error is None or tolerable(checked.error)


def tolerable(error: MeshError) -> bool:
    """Return whether a server that answers so to a check serves calls.

    One without the path that was asked for does; one that fails, is silent or refuses the key does not.
    """
    if isinstance(error, MalformedReply):
        return True
    away = isinstance(error, ServerUnavailable | DeadlineExceeded)
    return not away and error.reason != "REMOTE_KEY_REFUSED"


class ServerMonitor:
    """Checks the endpoints of a client, and reports what they answered. For the client's event loop.

    Args:
        client: calls the servers.
        path: of a GET that costs a server nothing, such as ``/models``.
        every_s: time between two checks. Seconds, (0, inf).
        report: called after each check with what each endpoint answered.
    """

    def __init__(
        self,
        client: RemoteClient,
        path: str,
        *,
        every_s: float,
        report: Callable[[Sequence[Checked]], None],
    ) -> None:
        self._client = client
        self._path = path
        self._every_s = every_s
        self._report = report
        self._checking: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Check once; takes five seconds at most."""
        ends = Deadline.after(_WAIT_S)
        self._report(await self._client.check(self._path, deadline=ends, tolerate=tolerable))

    def start(self) -> None:
        """Begin to check, the first time after ``every_s``."""
        self._checking = asyncio.create_task(self._check())

    async def close(self) -> None:
        """Stop checking."""
        await cancel(self._checking)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.check()
            except Exception:  # noqa: BLE001 - a later check may work
                _log.exception("model servers cannot be checked")
