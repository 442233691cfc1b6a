"""Run the processes that read pages, and end one that takes too long.

A page of a megabyte can keep an HTML parser busy for more than a minute, during which it lets nothing else of
its process run. It is a stranger's page: it gets a process that can be ended, and that has nothing worth
stealing in its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from threading import Lock
from typing import IO, Any, Final, TypeVar

from evenmesh_kit.compute.executors import ComputePool
from evenmesh_retriever.backends.web.page import Page, Text
from evenmesh_retriever.backends.web.reader import LENGTH, request
from evenmesh_retriever.ports import CannotStart

T = TypeVar("T")

_START_S: Final = 60.0


class Readers:
    """A fixed number of processes that read pages. Used in one event loop.

    Args:
        count: pages that are read at a time, [1, inf).
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._idle: list[_Reader] = []
        # Threads that wait for them; an event loop that forks would fork gRPC's threads too.
        self._pool = ComputePool(count, "pages")

    async def start(self) -> None:
        """Start them all.

        Raises:
            CannotStart: they lack a package, or do not start within a minute.
        """
        for _ in range(self._count):
            try:
                self._idle.append(await self._started())
            except TimeoutError:
                raise CannotStart("the process that reads pages of the web does not start") from None

    async def read(self, page: Page, url: str, *, timeout_s: float) -> Text | None:
        """Return what a page says; None where it says nothing, or its reader broke over it.

        Args:
            page: the page.
            url: where it was.
            timeout_s: for waiting and reading together. Seconds.

        Raises:
            TimeoutError: it took longer; its reader is ended.
        """
        async with asyncio.timeout(timeout_s), self._free:
            try:
                reader = self._idle.pop() if self._idle else await self._started()
                reply = await self._run(reader, lambda: reader.answer(request(page, url)))
            except TimeoutError:
                raise  # which is an OSError too
            except (OSError, EOFError, CannotStart):
                return None
            self._idle.append(reader)
        return None if reply is None else Text(**reply)

    async def close(self) -> None:
        """End them all; nothing may be read any more."""
        for reader in self._idle:
            reader.end()
        self._pool.close()

    async def _started(self) -> _Reader:
        reader = _Reader()
        async with asyncio.timeout(_START_S):
            await self._run(reader, reader.start)
        return reader

    async def _run(self, reader: _Reader, call: Callable[[], T]) -> T:
        """Wait for a reader in a thread; end the reader, and so the waiting, unless all goes well."""
        try:
            return await self._pool.run(call)
        except BaseException:
            reader.end()
            raise


class _Reader:
    """One process. Starting and answering wait; ending does not."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def start(self) -> None:
        """Start it. Raises CannotStart when it lacks a package, or ends."""
        with self._lock:
            if self._ended:
                return
            self._process = subprocess.Popen(
                [sys.executable, "-m", "evenmesh_retriever.backends.web.reader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUTF8": "1"},
            )
        try:
            missing = self.answer(b"")["missing"]
        except (OSError, EOFError):
            raise CannotStart("the process that reads pages of the web does not start") from None
        if missing is not None:
            raise CannotStart(
                f"web sources need {missing}, which is not installed: "
                "in a checkout, pip install './services/retriever[web]'"
            )

    def answer(self, message: bytes) -> Any:
        """Return its answer to a message. Raises OSError or EOFError when it has ended."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise EOFError
        try:
            process.stdin.write(message)
            process.stdin.flush()
            (length,) = LENGTH.unpack(_exactly(process.stdout, LENGTH.size))
            return json.loads(_exactly(process.stdout, length))
        except (OSError, EOFError):
            process.kill()
            process.wait()
            raise

    def end(self) -> None:
        """End the reader; fail the calls that wait for it."""
        with self._lock:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data
