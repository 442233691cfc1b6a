"""Take observations from a log between orchestrators and this evaluator."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from google.protobuf.message import DecodeError

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.wire.errors import Unavailable, from_item_error
from evenmesh_kit.rpc.statuses import to_mesh_error
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_kit.storage.tenant_log import LogEntry, TenantLog

_COUNT: Final = 64
_WAIT_S: Final = 1.0
_IDLE_S: Final = 15.0
"""Time after which entries of a consumer that has ended are taken over. Seconds."""
_MIN_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0
_log = logging.getLogger("evenmesh.evaluator.log")

Store = Callable[[str, pb.Observation], Awaitable[pb.ObserveResponse]]
"""Stores an observation of a tenant, and returns its acknowledgement or refusal."""


class LogConsumer:
    """Stores the entries of a log, each at least once, and removes what is stored.

    An observation that is given out twice is stored once, by its id. One that the evaluator refuses is set
    aside in the log. While observations cannot be stored, they stay in the log.

    Args:
        log: gives entries.
        store: stores one.
    """

    def __init__(self, log: TenantLog, store: Store) -> None:
        self._log = log
        self._store = store
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._left: list[LogEntry] = []
        self.waiting = 0
        """Entries of the log that were not stored when it last looked."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take entries."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Store what was given out already, take nothing more, and close the log."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._log.close()

    async def _run(self) -> None:
        pause_s = _MIN_PAUSE_S
        reclaim_at = 0.0
        loop = asyncio.get_running_loop()
        away = False
        while True:
            try:
                if not self._left and loop.time() >= reclaim_at:
                    self.waiting = await self._log.waiting()
                    self._left = await self._log.reclaim(self._name, count=_COUNT, idle_s=_IDLE_S)
                    if not self._left:  # no more for now
                        reclaim_at = loop.time() + _IDLE_S / 3
                if not self._left:
                    self._left = await self._log.read(self._name, count=_COUNT, wait_s=_WAIT_S)
                # A stop does not interrupt it: entries given out would wait for another consumer.
                await _whole(self._take())
                if away:
                    _log.info("observations of the log are stored again")
                pause_s, away = _MIN_PAUSE_S, False
            except Exception as raised:  # noqa: BLE001 - this task must not end
                if not away:
                    _log.warning("observations stay in the log: %s", to_mesh_error(raised).reason)
                away = True
                # It has tried them and lives: restarts while nothing can be stored are not theirs.
                holding = asyncio.create_task(self._hold(self._left, blameless=True))
                try:
                    await asyncio.sleep(pause_s)
                finally:
                    holding.cancel()
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _hold(self, entries: Sequence[LogEntry], *, blameless: bool = False) -> None:
        """Keep other consumers from entries, until cancelled."""
        while True:
            with contextlib.suppress(Unavailable):  # then nobody is given any
                await self._log.hold(self._name, entries, blameless=blameless)
            await asyncio.sleep(_IDLE_S / 3)

    async def _take(self) -> None:
        """Store entries together; keep those that could not be stored now.

        Raises:
            MeshError: some could not.
        """
        entries = self._left
        holding = asyncio.create_task(self._hold(entries))
        try:
            outcomes = await asyncio.gather(*(self._one(entry) for entry in entries), return_exceptions=True)
        finally:
            holding.cancel()
        stored: list[LogEntry] = []
        failed: list[BaseException] = []
        self._left = []
        for entry, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._left.append(entry)
                failed.append(outcome)
            elif outcome:
                await self._log.set_aside(entry, outcome)
            else:
                stored.append(entry)
        await self._log.done(stored)
        if failed:
            raise failed[0]

    async def _one(self, entry: LogEntry) -> str:
        """Store an entry; return why it is refused, or nothing."""
        callers.enter(Caller("log", entry.tenant, frozenset({Role.SERVICE})))
        try:
            message = pb.Observation.FromString(entry.payload)
        except DecodeError:
            return "UNREADABLE: it is no observation"
        response = await self._store(entry.tenant, message)
        if not response.HasField("refusal"):
            return ""
        error = from_item_error(response.refusal.error)
        return f"{error.reason}: {error}"


async def _whole(work: Awaitable[None]) -> None:
    """Await work to its end, also if this task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.gather(task, return_exceptions=True)
        raise
