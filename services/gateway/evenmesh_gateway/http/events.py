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


class Head:
    """Whether the head of a stream was sent: then an error is an event, and no response of its own."""

    def __init__(self) -> None:
        self.sent = False


def response(events: AsyncGenerator[bytes, None], head: Head | None = None) -> EventStream:
    """Return the response that streams events; a client that hangs up closes the generator.

    Args:
        events: the events.
        head: tells the generator whether it may still raise an error. The head is then sent during a silence
            before the first event, too; without it, it waits for that event.
    """
    return EventStream(events, head)


class EventStream(StreamingResponse):
    """A response of events: with them in one task, and what waits for silence and hanging up in another.

    Its head is sent with the first event: an error before it can still be another response. Starlette's own
    begins a group of tasks for a response, and a timer for each event would be one more task.

    Args:
        events: see :func:`response`.
        head: see :func:`response`.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], head: Head | None) -> None:
        super().__init__(
            events, media_type=MEDIA_TYPE, headers={"cache-control": "no-store", "x-accel-buffering": "no"}
        )
        self._opens_in_silence = head is not None
        self._head = head or Head()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events.

        Raises:
            HungUpError: the client hung up before the head was sent.
            Exception: what the generator raises.
        """
        loop, head = asyncio.get_running_loop(), self._head
        events = cast("AsyncGenerator[bytes, None]", self.body_iterator)
        sending = asyncio.Lock()  # a comment is within no event, and none comes after the last
        last_s = loop.time()

        async def begin() -> None:
            if not head.sent:
                head.sent = True
                await send(
                    {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
                )

        async def write() -> None:
            nonlocal last_s
            async for one in events:
                async with sending:
                    await begin()
                    await send({"type": "http.response.body", "body": one, "more_body": True})
                    last_s = loop.time()
            async with sending:
                await begin()
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
                        if not writing.done() and (head.sent or self._opens_in_silence):
                            await begin()
                            await send({"type": "http.response.body", "body": _COMMENT, "more_body": True})
                    last_s = loop.time()
                if writing.done():
                    writing.result()
                elif not head.sent:
                    raise HungUpError
            finally:
                leaving.cancel()
                writing.cancel()
                await asyncio.gather(writing, leaving, return_exceptions=True)


async def hung_up(receive: Receive) -> None:
    """Wait until the client hangs up."""
    while (await receive())["type"] != "http.disconnect":
        pass
