"""A scripted HTTP server: says byte by byte what a test wants, faults included, and sees callers leave."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from anyio.from_thread import start_blocking_portal


@dataclass
class HttpRequest:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body's JSON."""
        return json.loads(self.body)


class HttpReply:
    """Writes one reply; the connection closes when the script returns."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, status: int, body: bytes | str | dict[str, Any] | list[Any], **headers: str) -> None:
        """Write a whole reply; names of headers have ``_`` for ``-``."""
        data = (
            body
            if isinstance(body, bytes)
            else body.encode()
            if isinstance(body, str)
            else json.dumps(body).encode()
        )
        head = {"content-type": "application/json", "content-length": str(len(data))}
        await self.head(
            status, **{**head, **{name.replace("_", "-"): value for name, value in headers.items()}}
        )
        await self.raw(data)

    async def head(self, status: int, **headers: str) -> None:
        """Write status and headers."""
        headers = {"connection": "close", **headers}
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
        await self.raw("\r\n".join([*lines, "", ""]).encode())

    async def raw(self, data: bytes) -> None:
        """Write bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def open_events(self) -> None:
        """Begin a stream of events, in chunks."""
        await self.head(200, **{"content-type": "text/event-stream", "transfer-encoding": "chunked"})

    async def event(self, data: str | dict[str, Any]) -> None:
        """Write one event as one chunk."""
        text = data if isinstance(data, str) else json.dumps(data)
        block = f"data: {text}\n\n".encode()
        await self.raw(f"{len(block):x}\r\n".encode() + block + b"\r\n")

    async def end(self) -> None:
        """End the chunks."""
        await self.raw(b"0\r\n\r\n")

    def kill(self) -> None:
        """Reset the connection, as the kernel does for a process that was killed."""
        self._writer.transport.abort()


Script = Callable[[HttpRequest, HttpReply], Awaitable[None]]


@dataclass
class ScriptedHttp:
    """A server whose ``script`` answers each request.

    Attributes:
        script: writes the reply; it is cancelled when the caller closes the connection.
        requests: every request so far.
        left: set when a caller has closed a connection within a reply.
    """

    script: Script
    requests: list[HttpRequest] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    scheme: str = "http"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{self.origin}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the one request of a connection."""
        try:
            request = await _read(reader)
            self.requests.append(request)
            script = asyncio.ensure_future(self.script(request, HttpReply(writer)))
            gone = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait((script, gone), return_when=asyncio.FIRST_COMPLETED)
                if not script.done() or isinstance(script.exception(), ConnectionError):
                    self.left.set()
            finally:
                script.cancel()
                gone.cancel()
                await asyncio.wait((script, gone))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> HttpRequest:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return HttpRequest(method, path, headers, body)


@asynccontextmanager
async def serving(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedHttp]:
    """Serve a script on an ephemeral port until the block ends."""
    scripted = ScriptedHttp(script, scheme="http" if tls is None else "https")
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await scripted.serve(reader, writer)
        except asyncio.CancelledError:
            pass  # the end of the block; the server's own callback would log it
        finally:
            connections.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()
        for task in tuple(connections):
            task.cancel()
        if connections:
            await asyncio.wait(tuple(connections))


@contextmanager
def in_thread(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[ScriptedHttp]:
    """Serve a script from a thread, for callers that wait in the test's own."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(script, tls)) as server:
        yield server


async def hang(_: HttpRequest, __: HttpReply) -> None:
    """Never answer."""
    await asyncio.Event().wait()


def replying(status: int, body: bytes | str | dict[str, Any] | list[Any], **headers: str) -> Script:
    """Return a script that always gives one reply."""

    async def script(_: HttpRequest, reply: HttpReply) -> None:
        await reply.send(status, body, **headers)

    return script
