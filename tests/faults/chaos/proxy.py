"""A TCP proxy that is a bad network: it delays, throttles, cuts, and falls silent."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass


@dataclass(eq=False)
class _Link:
    """One connection and its other half; a silent one stays so, as behind a firewall that forgot it."""

    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    silent: bool = False

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Proxy:
    """Forwards what comes to a port of its own; an async context manager.

    Attributes:
        delay_s: added to every piece that passes. Seconds.
        bytes_per_s: most bytes each way of a connection; None for no bound.
        refuses: whether new connections are closed at once.
        silent: whether new connections are taken, and nothing comes of it.

    Args:
        target: ``host:port`` behind it.
    """

    def __init__(self, target: str) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address = ""
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self.refuses = False
        self.silent = False

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connections(self) -> int:
        """Connections that are open, silent ones among them."""
        return len(self._links)

    def cut(self) -> None:
        """Resets all connections."""
        for link in list(self._links):
            link.cut()

    def fall_silent(self) -> None:
        """Forgets all connections: nothing passes any more, and nobody is reported."""
        for link in self._links:
            link.silent = True

    def well(self) -> None:
        """Is a good network again; what is silent stays silent."""
        self.delay_s, self.bytes_per_s, self.refuses, self.silent = 0.0, None, False, False

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._join(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        try:
            other_reader, other_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link((writer, other_writer), silent=self.silent)
        self._links.add(link)
        there = asyncio.create_task(self._pump(link, reader, other_writer))
        back = asyncio.create_task(self._pump(link, other_reader, writer))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
            if link.silent:  # the other side is not informed
                await asyncio.wait((there, back))
        finally:
            there.cancel()
            back.cancel()
            link.cut()
            self._links.discard(link)

    async def _pump(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.bytes_per_s is not None:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                if link.silent:
                    continue
                writer.write(data)
                await writer.drain()
