"""Open a service's database at its start, and wait for a server that is not there yet."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Final

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.storage.sql_settings import DatabaseSettings

_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 15.0
_log = logging.getLogger("evenmesh.kit.storage")


async def opened(settings: DatabaseSettings, open_it: Callable[[], Awaitable[None]]) -> None:
    """Open a database; wait up to ``database_wait_s`` for a server that cannot be reached.

    Args:
        settings: say where the database is, and how long to wait.
        open_it: opens it, and may be called again where it failed.

    Raises:
        ServerStartError: it cannot be opened; one line that says what to do.
    """
    has_server = settings.database().get_backend_name() == "postgresql"
    ends = time.monotonic() + settings.database_wait_s
    pause_s = _PAUSE_S
    while True:
        try:
            await open_it()
        except Unavailable as error:
            left_s = ends - time.monotonic()
            if left_s <= 0 or not has_server or not _is_away(error):
                raise ServerStartError(settings.remedy(error)) from error
            _log.warning(
                "waiting for the database", extra={"why": settings.remedy(error), "longest_s": round(left_s)}
            )
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            return


def _is_away(error: BaseException) -> bool:
    """Return whether a server of PostgreSQL could not be reached, or starts or ends.

    Another error, such as a wrong password or an unknown authority, stays however long one waits.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return not isinstance(cause, ssl.SSLError)
        state = getattr(cause, "sqlstate", None)
        if isinstance(state, str):
            # PostgreSQL's appendix A: connection exceptions, shutdown and start, too many connections.
            return state.startswith(("08", "57P")) or state == "53300"
        cause = getattr(cause, "orig", None) or cause.__cause__
    return False
