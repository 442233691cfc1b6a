"""Server-sent events (WHATWG HTML, section 9.2), with comments while nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from starlette.responses import StreamingResponse

MEDIA_TYPE: Final = "text/event-stream"
_SILENCE_S: Final = 15.0
"""Longest silence: proxies on the way close connections that are silent for a minute. Seconds."""


def event(data: bytes, name: str = "") -> bytes:
    """Return one event; ``data`` is one line."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, data)


async def begun(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Wait for the first event, and return all of them.

    An error before the first event can still be the response; after it the status is sent.

    Raises:
        Exception: what the generator raises before its first event.
    """
    first: bytes | None = None
    try:
        first = await anext(events, None)
    except BaseException:
        await events.aclose()
        raise

    async def every() -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            if first is not None:
                yield first
                async for one in events:
                    yield one

    return every()


def response(events: AsyncGenerator[bytes, None]) -> StreamingResponse:
    """Return the response that streams events; a client that hangs up closes the generator."""
    return StreamingResponse(
        _audible(events),
        media_type=MEDIA_TYPE,
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _audible(events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Yield the events, and a comment whenever none comes for long."""
    async with aclosing(events):
        while True:
            upcoming = asyncio.ensure_future(anext(events, None))
            try:
                while not upcoming.done():
                    await asyncio.wait((upcoming,), timeout=_SILENCE_S)
                    if not upcoming.done():
                        yield b": \n\n"
            finally:
                if not upcoming.done():
                    upcoming.cancel()
                    await asyncio.gather(upcoming, return_exceptions=True)
            if (one := upcoming.result()) is None:
                return
            yield one
