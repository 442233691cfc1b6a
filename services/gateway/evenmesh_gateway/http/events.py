"""Server-sent events (WHATWG HTML, section 9.2), with comments while nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, cast

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

MEDIA_TYPE: Final = "text/event-stream"
_COMMENT: Final = b": \n\n"
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


def response(events: AsyncGenerator[bytes, None]) -> EventStream:
    """Return the response that streams events; a client that hangs up closes the generator."""
    return EventStream(
        events, media_type=MEDIA_TYPE, headers={"cache-control": "no-store", "x-accel-buffering": "no"}
    )


class EventStream(StreamingResponse):
    """A response of events: with them in one task, and what waits for silence and hanging up in another.

    Starlette's own begins a group of tasks for a response, and a timer for each event would be one more task.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        events = cast("AsyncGenerator[bytes, None]", self.body_iterator)
        sending = asyncio.Lock()  # a comment is within no event, and none comes after the last
        last_s = loop.time()

        async def write() -> None:
            nonlocal last_s
            head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(head)
            async for one in events:
                async with sending:
                    await send({"type": "http.response.body", "body": one, "more_body": True})
                last_s = loop.time()
            async with sending:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        async with aclosing(events):
            writing, leaving = loop.create_task(write()), loop.create_task(hung_up(receive))
            try:
                while not (writing.done() or leaving.done()):
                    silence_s = _SILENCE_S - (loop.time() - last_s)
                    if silence_s > 0:
                        await asyncio.wait(
                            (writing, leaving), timeout=silence_s, return_when=asyncio.FIRST_COMPLETED
                        )
                        continue
                    async with sending:
                        if not writing.done():
                            await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
                    last_s = loop.time()
                if writing.done():
                    writing.result()
            finally:
                leaving.cancel()
                writing.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)


async def hung_up(receive: Receive) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
