"""Read uploads in processes of their own (:mod:`evenmesh_documents.uploads.process`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final, Self

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, InvalidField
from evenmesh_documents.parsing.wire import LENGTH
from evenmesh_documents.uploads.process import (
    COUNT,
    EVENT,
    INVALID_RULE,
    REQUEST,
    GatheringJob,
    job_bytes,
)
from evenmesh_gateway.http.problems import TOO_LARGE, HttpProblem
from evenmesh_gateway.uploads.options import RULES

_MODULE: Final = "evenmesh_documents.uploads.process"
_MOST_MESSAGE: Final = 64 << 20
_STOPS_WITHIN_S: Final = 5.0
_KEPT: Final = (
    *("EVENMESH_HOME", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONDONTWRITEBYTECODE"),
    *("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV"),
)
"""Variables that the process has: none that may hold a secret."""
_log = logging.getLogger("evenmesh.gateway.uploads")


class UploadReader:
    """One process that reads one upload; it starts while the files are still coming, and ends with the block.

    Args:
        folder: for what it keeps on disk.
        read_s: longest time to read the files. Seconds.
        deadline: until when it may take in all.

    Attributes:
        sent: passages that :meth:`requests` has yielded.
    """

    def __init__(self, folder: Path, read_s: float, deadline: Deadline) -> None:
        self.sent = 0
        self._folder = folder
        self._read_s = read_s
        self._deadline = deadline
        self._begun = False
        self._process: Process

    async def __aenter__(self) -> Self:
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", _MODULE),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            # A signal to the group of the gateway is for the gateway, which ends this process.
            start_new_session=True,
            env={**environment, "TMPDIR": str(self._folder), "OMP_NUM_THREADS": "1"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._begun and self._process.stdin is not None:
                self._process.stdin.close()  # it ends those that parse, and then itself
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _STOPS_WITHIN_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()

    async def events(self, job: GatheringJob) -> AsyncGenerator[dict[str, Any], None]:
        """Read files and yield what was done, ``{"read": …}`` last.

        Raises:
            HttpProblem: they hold too much, or the process has ended.
            InvalidField: a rule has a pattern that is none.
            DeadlineExceeded: it takes too long.
        """
        until = Deadline.after(self._read_s)
        self._begun = True
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(job_bytes(job))
            except RuntimeError:  # as uvloop says of a process that has ended
                raise _ended() from None
        while True:
            kind, body = await self._message(until)
            if kind != EVENT:
                raise _ended()
            event = json.loads(body)
            if "failed" in event:
                if event["reason"] == INVALID_RULE:
                    raise InvalidField(event["failed"], RULES)
                status = TOO_LARGE if event["reason"] == "TOO_LARGE" else 500
                if status >= 500:
                    _log.error("an upload was not read", extra={"why": event["failed"]})
                raise HttpProblem(status, event["reason"], event["failed"])
            yield event
            if "read" in event:
                return

    async def requests(self, passages: int) -> AsyncGenerator[bytes, None]:
        """Yield the messages of the ingest of so many passages.

        Raises:
            HttpProblem: the process has ended.
            DeadlineExceeded: it takes too long.
        """
        while self.sent < passages:
            kind, body = await self._message(self._deadline)
            if kind != REQUEST:
                raise _ended()
            (count,) = COUNT.unpack(body[: COUNT.size])
            yield body[COUNT.size :]
            self.sent += count

    async def _message(self, until: Deadline) -> tuple[bytes, bytes]:
        """Return kind and body of the next message."""
        stream = self._process.stdout
        if stream is None:
            raise _ended()
        try:
            async with asyncio.timeout(min(until.remaining(), self._deadline.remaining(), self._read_s)):
                (length,) = LENGTH.unpack(await stream.readexactly(LENGTH.size))
                if not 1 <= length <= _MOST_MESSAGE:
                    raise _ended()
                body = await stream.readexactly(length)
        except TimeoutError:
            raise DeadlineExceeded("the files take too long to read: send fewer at once") from None
        except asyncio.IncompleteReadError:
            raise _ended() from None
        return body[:1], body[1:]


def _ended() -> HttpProblem:
    return HttpProblem(
        500, "READING_FAILED", "the process that reads the files has ended: send fewer at once"
    )
