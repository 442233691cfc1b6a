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


class HungUpError(Exception):
    """Raised when the client has closed its connection before it had its response."""


def event(data: bytes, name: str = "") -> bytes:
    """Return one event; ``data`` is one line."""
    head = f"event: {name}\n".encode() if name else b""
    return b"%bdata: %b\n\n" % (head, data)


def response(events: AsyncGenerator[bytes, None]) -> EventStream:
    """Return the response that streams events; a client that hangs up closes the generator."""
    return EventStream(
        events, media_type=MEDIA_TYPE, headers={"cache-control": "no-store", "x-accel-buffering": "no"}
    )


class EventStream(StreamingResponse):
    """A response of events: with them in one task, and what waits for silence and hanging up in another.

    Its head is sent with the first event: an error before it can still be another response. Starlette's own
    begins a group of tasks for a response, and a timer for each event would be one more task.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events.

        Raises:
            HungUpError: the client hung up before the first event.
            Exception: what the generator raises.
        """
        loop = asyncio.get_running_loop()
        events = cast("AsyncGenerator[bytes, None]", self.body_iterator)
        sending = asyncio.Lock()  # a comment is within no event, and none comes after the last
        last_s = 0.0  # 0 until the head is sent

        async def begin() -> None:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )

        async def write() -> None:
            nonlocal last_s
            async for one in events:
                async with sending:
                    if not last_s:
                        await begin()
                    await send({"type": "http.response.body", "body": one, "more_body": True})
                    last_s = loop.time()
            async with sending:
                if not last_s:
                    await begin()
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        async with aclosing(events):
            writing, leaving = loop.create_task(write()), loop.create_task(hung_up(receive))
            try:
                while not (writing.done() or leaving.done()):
                    silence_s = _SILENCE_S - (loop.time() - last_s if last_s else 0.0)
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
                elif not last_s:
                    raise HungUpError
            finally:
                leaving.cancel()
                writing.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)


async def hung_up(receive: Receive) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
