"""The outbox relay: store observations in the outbox, and deliver them when the evaluator is reachable."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Final, Protocol

import grpc

from evenmesh.evaluator.v1.evaluator_service_pb2 import ObserveResponse, RunReport
from evenmesh.wire.errors import MeshError, Unavailable, from_item_error
from evenmesh_kit.rpc.breaker import Unanswered
from evenmesh_kit.rpc.statuses import to_mesh_error
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_orchestrator.asks.failure_policy import failure_of
from evenmesh_orchestrator.domain import Observation
from evenmesh_orchestrator.observations.outbox import Outbox, OutboxEntry
from evenmesh_orchestrator.ports import Receipt

_log = logging.getLogger("evenmesh.orchestrator.relay")

_WINDOW: Final = 256
_READ: Final = 64
_MIN_PAUSE_S: Final = 0.1
_MAX_PAUSE_S: Final = 5.0
_MAX_STREAM_S: Final = 30.0
_GATHER_S: Final = 0.05
_SCAN_S: Final = 15.0
_DRAIN_S: Final = 0.05
_ENVELOPE_BYTES: Final = 64
MAX_ATTEMPTS: Final = 5
"""Default number of failed attempts after which an entry is set aside."""
_EVALUATOR_FAILURES: Final = {
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DATA_LOSS,
}
_REFUSALS: Final = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
}


class ObserveStream(Protocol):
    """One stream of observations to the evaluator."""

    async def send(self, payload: bytes, *, want_report: bool) -> bool:
        """Send an observation. Return False if the stream is dead; its responses then say why."""

    def responses(self) -> AsyncIterator[ObserveResponse]:
        """Yield the responses in the order of the entries sent; raise MeshError if the stream breaks."""

    async def finish(self) -> None:
        """Announce that no entry follows; entries already sent are still answered."""

    def cancel(self) -> None:
        """End the stream at once."""


class Receiver(Protocol):
    """The receiver of observations: the evaluator, or a log from which it takes them."""

    @property
    def gives_reports(self) -> bool:
        """Whether a report can follow an observation."""

    def observe(self) -> ObserveStream:
        """Open a stream for the current tenant; a failure shows when it is used."""

    @property
    def max_message_bytes(self) -> int:
        """The largest message that the evaluator accepts, as far as is known. Bytes."""

    async def is_serving(self) -> bool:
        """Return whether the evaluator answers and says that it serves."""

    async def watch(self, on_change: Callable[[bool], None]) -> None:
        """Keep trying to reach the evaluator, and report whenever it becomes reachable or unreachable."""


class OutboxRelay:
    """Stores observations durably and delivers them in the background until each is acknowledged.

    Each tenant has its own stream: its observations arrive as its own, and never wait for another's.

    Args:
        outbox: stores observations; the relay opens and closes it.
        receiver: receives them.
        encode: writes an observation as the evaluator reads it.
        max_attempts: failed attempts after which an entry is set aside, [1, inf).
        idle_s: how long a stream with nothing to send stays open. Seconds, (0, inf).
    """

    def __init__(
        self,
        outbox: Outbox,
        receiver: Receiver,
        encode: Callable[[Observation], bytes],
        *,
        max_attempts: int = MAX_ATTEMPTS,
        idle_s: float = 1.0,
    ) -> None:
        self._max_attempts = max_attempts
        self._probe = asyncio.Lock()
        self._outbox = outbox
        self._receiver = receiver
        self._encode = encode
        self._idle_s = idle_s
        self._reachable: bool | None = None
        self._tenants: dict[str, _TenantRelay] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Open the outbox and start delivering its entries.

        Raises:
            Unavailable: the outbox cannot be used.
        """
        await self._outbox.open()
        self._tasks.append(asyncio.create_task(self._receiver.watch(self._on_change)))
        self._tasks.append(asyncio.create_task(self._scan()))

    async def drain(self, timeout_s: float) -> int:
        """Deliver what the outbox holds, for at most so long; return the entries that stay.

        Args:
            timeout_s: an evaluator that is away is waited for, too. Seconds, [0, inf).
        """
        with contextlib.suppress(TimeoutError, Unavailable):
            async with asyncio.timeout(timeout_s):
                while tenants := await self._outbox.tenants():
                    for tenant in tenants:
                        self._relay(tenant).wake(hurry=True)
                    await asyncio.sleep(_DRAIN_S)
        if self._outbox.size:
            _log.warning("observations stay in the outbox", extra={"entries": self._outbox.size})
        return self._outbox.size

    async def stop(self) -> None:
        """Stop delivering; the outbox holds the rest for the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outbox.close()

    async def submit(self, observation: Observation) -> Receipt:
        """Store an observation for the caller's tenant; see :class:`evenmesh_orchestrator.ports.Observer`."""
        tenant, id_ = callers.current().tenant, observation.ask.id
        relay = self._relay(tenant)
        report = relay.expect_report(id_) if observation.ask.want_report else None
        largest = self._receiver.max_message_bytes - _ENVELOPE_BYTES
        await self._outbox.append(tenant, id_, self._encode(observation), largest=largest)
        relay.wake(hurry=report is not None)
        waits = self._waits(relay)
        if report is not None and not self._receiver.gives_reports:
            words = "observations go through a log: ask for the report of the run a little later"
            _fail(report, Unavailable("REPORT_LATER", words))
        elif waits is not None and report is not None:
            _fail(report, Unavailable(waits, "the evaluator is away"))
        return Receipt(waits, report)

    async def _scan(self) -> None:
        """Wake tenants whose entries come from another process, past or present."""
        while True:
            with contextlib.suppress(Unavailable):  # submit reports it
                for tenant in await self._outbox.tenants():
                    self._relay(tenant).wake()
            await asyncio.sleep(_SCAN_S)

    def _relay(self, tenant: str) -> _TenantRelay:
        relay = self._tenants.get(tenant)
        if relay is None:
            relay = _TenantRelay(
                tenant,
                self._outbox,
                self._receiver,
                probe=self._probe,
                max_attempts=self._max_attempts,
                idle_s=self._idle_s,
            )
            self._tenants[tenant] = relay
            # A fresh context: the deadline and the trace of the first ask do not apply to later ones.
            task = asyncio.create_task(relay.run(), context=contextvars.Context())
            self._tasks.append(task)
        return relay

    def _waits(self, relay: _TenantRelay) -> str | None:
        """Return why new observations have to wait; None if they do not, as far as is known."""
        if relay.trouble is not None:
            return failure_of(relay.trouble).reason
        return "UPSTREAM_UNAVAILABLE" if self._reachable is False else None

    def _on_change(self, reachable: bool) -> None:
        self._reachable = reachable
        for relay in self._tenants.values():
            relay.on_change(reachable)


class _TenantRelay:
    """Delivers the entries of one tenant.

    A stream stays open while there is something to send and ``idle_s`` longer, but never for long, so that an
    evaluator that wants to stop does not wait for a silent stream. Unacknowledged entries are sent again over
    the next stream: after a pause that doubles from 0.1 to 5 s, or as soon as a lost connection is back. The
    evaluator counts every id once, so that sending twice is harmless.

    Every attempt is counted on disk before it begins, and taken back if its end had nothing to do with the
    entry. If the connection breaks or the evaluator fails, all entries on their way are suspects. Suspects
    are sent alone, one at a time among all tenants, and only to an evaluator that says that it serves: so an
    outage counts against none of them. An entry at which the evaluator fails ``max_attempts`` times, or that
    it refuses permanently, is set aside.
    """

    def __init__(
        self,
        tenant: str,
        outbox: Outbox,
        receiver: Receiver,
        *,
        probe: asyncio.Lock,
        max_attempts: int,
        idle_s: float,
    ) -> None:
        self._probe = probe
        self._max_attempts = max_attempts
        self.trouble: MeshError | None = None
        self._tenant = tenant
        self._outbox = outbox
        self._receiver = receiver
        self._idle_s = idle_s
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._returned = asyncio.Event()
        # An ask that stops waiting drops its receipt, and with it the last reference to its report.
        self._reports: weakref.WeakValueDictionary[str, asyncio.Future[RunReport]] = (
            weakref.WeakValueDictionary()
        )

    def expect_report(self, id_: str) -> asyncio.Future[RunReport]:
        """Return the future report that comes with the observation of that id."""
        report: asyncio.Future[RunReport] = asyncio.get_running_loop().create_future()
        self._reports[id_] = report
        return report

    def wake(self, *, hurry: bool = False) -> None:
        """Start delivering; ``hurry`` if a caller waits for it."""
        self._work.set()
        if hurry:
            self._hurry.set()

    def on_change(self, reachable: bool) -> None:
        """React to an evaluator that becomes reachable or unreachable."""
        if reachable:
            self.trouble = None
            self._returned.set()
        else:
            self._fail_reports(Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator is away"))

    def _fail_reports(self, error: MeshError) -> None:
        for report in list(self._reports.values()):
            _fail(report, error)

    async def run(self) -> None:
        """Deliver entries whenever there are some, forever."""
        # Calls of this task are made for the tenant.
        callers.enter(Caller("outbox", self._tenant, frozenset({Role.SERVICE})))
        pause_s = _MIN_PAUSE_S
        while True:
            await self._work.wait()
            self._returned.clear()
            try:
                await self._deliver()
                self.trouble = None  # also after a stream that had nothing to send
                pause_s = _MIN_PAUSE_S
            except Exception as raised:  # noqa: BLE001 - logged there; this task must not end
                error = to_mesh_error(raised)
                if self.trouble is None:
                    _log.warning("observations wait, as they cannot be delivered: %s", error.reason)
                    pause_s = _MIN_PAUSE_S
                self.trouble = error
                self._fail_reports(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(pause_s, error.retry_after_s or 0.0)):
                        await self._returned.wait()
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
                if self._outbox.size:
                    self._work.set()

    async def _deliver(self) -> None:
        """Send entries over one stream until it was idle, was open for long, or breaks."""
        self._work.clear()
        entries = await self._outbox.waiting(self._tenant, after=0, limit=1)
        if not entries:
            return
        if not entries[0].attempts:
            await self._stream(alone=False)
            return
        async with self._probe:
            if not await self._receiver.is_serving():
                raise Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator does not serve")
            await self._stream(alone=True)

    async def _stream(self, *, alone: bool) -> None:
        sent: dict[str, OutboxEntry] = {}
        room = asyncio.Semaphore(1 if alone else _WINDOW)
        stream = self._receiver.observe()
        receiver = asyncio.create_task(self._receive(stream, sent, room))
        sender = asyncio.create_task(self._send(stream, sent, room, alone=alone))
        blamed = False
        try:
            await asyncio.wait((receiver, sender), return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
            await receiver
            if sent:
                raise Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator ended the stream early")
        except MeshError as error:
            blamed = _blames(error)
            if blamed and alone and sent:
                await self._judge(sent, error)
            raise
        finally:
            stream.cancel()
            for task in (receiver, sender):
                task.cancel()
            await asyncio.gather(receiver, sender, return_exceptions=True)
            if sent and not blamed:
                with contextlib.suppress(Unavailable):  # then they are sent alone first
                    await self._outbox.withdraw([one.sequence for one in sent.values()])

    async def _send(
        self, stream: ObserveStream, sent: dict[str, OutboxEntry], room: asyncio.Semaphore, *, alone: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + _MAX_STREAM_S
        after = 0
        while loop.time() < ends:
            self._work.clear()
            self._hurry.clear()
            entries = await self._outbox.waiting(self._tenant, after=after, limit=1 if alone else _READ)
            batch = list(takewhile(lambda one: (one.attempts > 0) is alone, entries))
            if entries and not batch:
                self._work.set()  # the rest is sent the other way, over the next stream
                break
            for _ in batch:
                await room.acquire()
            if batch:
                await self._begin([one.sequence for one in batch])
                sent.update((one.id, replace(one, payload=b"")) for one in batch)
            for one in batch:
                after = one.sequence
                if not await stream.send(one.payload, want_report=one.id in self._reports):
                    return
            if batch:
                continue
            try:
                async with asyncio.timeout(self._idle_s):
                    await self._work.wait()
            except TimeoutError:
                break
            # Wait a moment for more entries, unless a caller waits for a report.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_S):
                    await self._hurry.wait()
        else:
            self._work.set()  # there may be more for the next stream
        await stream.finish()

    async def _begin(self, sequences: Sequence[int]) -> None:
        """Count an attempt of each, and take it back where the stream ends before they are on their way."""
        begun = asyncio.ensure_future(self._outbox.begin(sequences))
        try:
            await asyncio.shield(begun)
        except asyncio.CancelledError:
            # Its thread commits all the same: an outage would count as attempts.
            (failed,) = await asyncio.gather(begun, return_exceptions=True)
            if failed is None:
                with contextlib.suppress(Unavailable):
                    await self._outbox.withdraw(sequences)
            raise

    async def _receive(
        self, stream: ObserveStream, sent: dict[str, OutboxEntry], room: asyncio.Semaphore
    ) -> None:
        arrived: list[int] = []
        last = ""
        try:
            async for response in stream.responses():
                if response.HasField("report"):  # of the run of the observation acknowledged just before
                    report = self._reports.get(last)
                    if report is not None and not report.done():
                        report.set_result(response.report)
                    continue
                refused = response.HasField("refusal")
                last = (response.refusal if refused else response.ack).observation_id
                entry = sent.pop(last, None)
                if entry is not None and refused:
                    await self._refuse(entry, from_item_error(response.refusal.error))
                elif entry is not None:
                    arrived.append(entry.sequence)
                room.release()
                self.trouble = None
                if len(arrived) >= _READ or (arrived and not sent):
                    await self._outbox.remove(arrived)
                    arrived.clear()
        finally:
            if arrived:
                await self._outbox.remove(arrived)

    async def _judge(self, sent: dict[str, OutboxEntry], error: MeshError) -> None:
        """Set aside the entry that was sent alone if it failed permanently, or often enough."""
        ((id_, entry),) = sent.items()
        if _is_final(error) or entry.attempts + 1 >= self._max_attempts:
            with contextlib.suppress(Unavailable):  # the outbox cannot be written: the entry is sent again
                await self._refuse(entry, error)
                del sent[id_]

    async def _refuse(self, entry: OutboxEntry, error: MeshError) -> None:
        # Sending it again would only block later entries; the file keeps it for a person to look at.
        _log.error("observation %s is set aside: %s", entry.id, error.reason)
        await self._outbox.set_aside(entry.sequence, f"{error.reason}: {error}")
        if (report := self._reports.get(entry.id)) is not None:
            _fail(report, error)


def _is_final(error: MeshError) -> bool:
    """Return whether sending the same entry again cannot help."""
    if error.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # A full disk of the evaluator is for a person to solve, and then the entry is welcome.
        return error.retry_after_s is None and not error.reason.startswith("STORE_")
    return error.code in _REFUSALS


def _blames(error: MeshError) -> bool:
    """Return whether an entry on its way may be why the stream broke."""
    return isinstance(error, Unanswered) or error.code in _EVALUATOR_FAILURES or _is_final(error)


def _fail(report: asyncio.Future[RunReport], error: MeshError) -> None:
    if not report.done():
        report.set_exception(error)
        report.exception()  # marks it as retrieved: nobody has to wait for it
