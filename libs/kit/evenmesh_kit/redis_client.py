"""Ask a server that speaks the Redis protocol, so that no command is sent twice and no cancellation is lost.

The package ``redis`` is imported when a client is made: who needs no such server does without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from redis.asyncio import Redis

_CONNECTIONS: Final = 16


def connect(url: str, answer_s: float) -> Redis:
    """Return a client that never resends a command automatically: it could take effect twice.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; it may hold a password.
        answer_s: how long to wait for one of its 16 connections. Seconds, (0, inf).

    Raises:
        ValueError: the URL is none; the text may hold the password.
        ImportError: the package ``redis`` is missing.
    """
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    pool = BlockingConnectionPool.from_url(
        url, max_connections=_CONNECTIONS, timeout=answer_s, retry=Retry(NoBackoff(), 0)
    )
    return Redis.from_pool(pool)


async def answer(asked: Awaitable[Any], answer_s: float) -> Any:
    """Return the answer of the server, or raise what the package raises.

    A task that is cancelled meanwhile ends: while it connects, the package loses cancellations, and goes on
    or raises another error instead.

    Args:
        asked: the command.
        answer_s: how long it may take. Seconds, (0, inf).

    Raises:
        TimeoutError: it took longer.
    """
    try:
        async with asyncio.timeout(answer_s):
            found = await asked
    except Exception:
        _stop_if_cancelled()
        raise
    _stop_if_cancelled()
    return found


def _stop_if_cancelled() -> None:
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
