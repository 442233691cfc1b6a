"""The courier: takes observations into the outbox and brings them to the evaluator, whenever it is there."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, Protocol

import grpc

from meshkit.errors import MeshError, Unavailable, to_mesh_error
from meshkit.security import caller as callers
from meshkit.security.caller import Caller, Role
from orchestrator.domain import Observation
from orchestrator.outbox import Letter, Outbox
from orchestrator.policy import failure_of
from orchestrator.ports import Receipt

_log = logging.getLogger("ragmesh.orchestrator.courier")

_WINDOW: Final = 256
_READ: Final = 64
_SHORTEST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_LONGEST_LINE_S: Final = 30.0
_GATHER_S: Final = 0.05
_LOOK_S: Final = 15.0
_POISONED: Final = 3
_FAILED: Final = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}


@dataclass(frozen=True, slots=True)
class Delivered:
    """The evaluator has an observation for good, now or since an earlier time."""

    observation_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The evaluator will never take this observation."""

    observation_id: str
    error: MeshError


@dataclass(frozen=True, slots=True)
class RunReported:
    """The report of the run of the observation delivered just before; carried and never read."""

    report: object


Outcome = Delivered | Refused | RunReported


class Line(Protocol):
    """One stream to the evaluator."""

    async def send(self, payload: bytes, *, want_report: bool) -> bool:
        """Sends an observation; False if the line is dead, and then its outcomes tell why."""

    def outcomes(self) -> AsyncIterator[Outcome]:
        """What came of what was sent, in order, until the line ends. Raises MeshError when it breaks."""

    async def hang_up(self) -> None:
        """Says that nothing more will be sent; what was sent is still answered."""

    def cut(self) -> None:
        """Ends the line at once."""


class Evaluator(Protocol):
    """Where the courier goes."""

    def call(self) -> Line:
        """Opens a line for the tenant of now; whether anybody answers shows when it is used."""

    async def watch(self, on_change: Callable[[bool], None]) -> None:
        """Keeps trying to reach the evaluator and says whenever that begins or ceases to work."""


class Courier:
    """Keeps observations durably at once and delivers them in the background, each until acknowledged.

    Each tenant has a route of its own: what it observed arrives as its own, and is not behind another's.

    Args:
        outbox: where observations wait; the courier opens and closes it.
        evaluator: where they go.
        encode: writes an observation as the evaluator reads it.
        idle_s: how long a line with nothing to send stays open. Seconds, (0, inf).
    """

    def __init__(
        self,
        outbox: Outbox,
        evaluator: Evaluator,
        encode: Callable[[Observation], bytes],
        *,
        idle_s: float = 1.0,
    ) -> None:
        self._outbox = outbox
        self._evaluator = evaluator
        self._encode = encode
        self._idle_s = idle_s
        self._reachable: bool | None = None
        self._routes: dict[str, _Route] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Opens the outbox and starts delivering what it holds.

        Raises:
            Unavailable: the outbox cannot be used.
        """
        await self._outbox.open()
        self._tasks.append(asyncio.create_task(self._evaluator.watch(self._on_change)))
        self._tasks.append(asyncio.create_task(self._look_for_what_was_left()))

    async def stop(self) -> None:
        """Stops delivering; what has not arrived stays in the outbox for the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outbox.close()

    async def post(self, observation: Observation) -> Receipt:
        """See :class:`orchestrator.ports.Observer`; it is the tenant's whose ask it was."""
        tenant, id_ = callers.current().tenant, observation.ask.id
        route = self._route(tenant)
        report = route.expect(id_) if observation.ask.want_report else None
        await self._outbox.append(tenant, id_, self._encode(observation))
        route.wake(hurry=report is not None)
        away = self._away(route)
        if away is not None and report is not None:
            _give_up(report, Unavailable(away, "the evaluator is away"))
        return Receipt(away, report)

    async def _look_for_what_was_left(self) -> None:
        """Wakes routes for what an earlier process left, or one beside this that ended meanwhile."""
        while True:
            with contextlib.suppress(Unavailable):  # who posts is told
                for tenant in await self._outbox.tenants():
                    self._route(tenant).wake()
            await asyncio.sleep(_LOOK_S)

    def _route(self, tenant: str) -> _Route:
        route = self._routes.get(tenant)
        if route is None:
            route = _Route(tenant, self._outbox, self._evaluator, idle_s=self._idle_s)
            self._routes[tenant] = route
            # Not within the ask that happened to be the first: its deadline is not theirs, nor its trace.
            task = asyncio.create_task(route.deliver_for_ever(), context=contextvars.Context())
            self._tasks.append(task)
        return route

    def _away(self, route: _Route) -> str | None:
        """Why what is posted now has to wait; None where it does not, as far as is known."""
        if route.trouble is not None:
            return failure_of(route.trouble).reason
        return "UPSTREAM_UNAVAILABLE" if self._reachable is False else None

    def _on_change(self, reachable: bool) -> None:
        self._reachable = reachable
        for route in self._routes.values():
            route.on_change(reachable)


class _Route:
    """What a tenant's letters go by.

    A line stays open while there is something to send and ``idle_s`` longer, and never for long, so that an
    evaluator that wants to stop does not wait for a line that says nothing. When the evaluator is away, what
    it has not acknowledged is sent again over the next line: after a pause that doubles from 0.1 to 5 s, or
    as soon as a lost connection is back. The evaluator takes every id once, so sending twice does no harm.
    """

    def __init__(self, tenant: str, outbox: Outbox, evaluator: Evaluator, *, idle_s: float) -> None:
        self.trouble: MeshError | None = None
        self._tenant = tenant
        self._outbox = outbox
        self._evaluator = evaluator
        self._idle_s = idle_s
        self._work = asyncio.Event()
        self._hurry = asyncio.Event()
        self._returned = asyncio.Event()
        self._oldest: Letter | None = None
        self._failures = 0
        # An ask that stops waiting drops its receipt, and with it the last reference to its report.
        self._reports: weakref.WeakValueDictionary[str, asyncio.Future[object]] = (
            weakref.WeakValueDictionary()
        )

    def expect(self, id_: str) -> asyncio.Future[object]:
        """The report that comes with the observation of that id."""
        report: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._reports[id_] = report
        return report

    def wake(self, *, hurry: bool = False) -> None:
        """There is something to bring; somebody waits for it, or nobody does."""
        self._work.set()
        if hurry:
            self._hurry.set()

    def on_change(self, reachable: bool) -> None:
        """The evaluator is there again, or is away."""
        if reachable:
            self.trouble = None
            self._returned.set()
        else:
            self._give_up_reports(Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator is away"))

    def _give_up_reports(self, error: MeshError) -> None:
        for report in list(self._reports.values()):
            _give_up(report, error)

    async def deliver_for_ever(self) -> None:
        """Brings what waits, whenever there is something."""
        # Calls of this task are made for the tenant.
        callers.enter(Caller("outbox", self._tenant, frozenset({Role.SERVICE})))
        pause_s = _SHORTEST_PAUSE_S
        while True:
            await self._work.wait()
            self._returned.clear()
            try:
                await self._deliver()
                self.trouble = None  # also after a line that had nothing to bring
                self._failures = 0
                pause_s = _SHORTEST_PAUSE_S
            except Exception as raised:  # noqa: BLE001 - logged there; a courier that dies delivers nothing ever
                error = to_mesh_error(raised)
                if self.trouble is None:
                    _log.warning("the evaluator takes no observations: %s", error.reason)
                    pause_s = _SHORTEST_PAUSE_S
                self.trouble = error
                self._give_up_reports(error)
                if error is raised and error.code in _FAILED:
                    await self._suspect(error)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(pause_s, error.retry_after_s or 0.0)):
                        await self._returned.wait()
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                if self._outbox.size:
                    self._work.set()

    async def _deliver(self) -> None:
        """Brings what waits over one line, until it has been idle, or long, or breaks."""
        sent: dict[str, Letter] = {}
        room = asyncio.Semaphore(_WINDOW)
        line = self._evaluator.call()
        receiver = asyncio.create_task(self._receive(line, sent, room))
        sender = asyncio.create_task(self._send(line, sent, room))
        try:
            await asyncio.wait((receiver, sender), return_when=asyncio.FIRST_COMPLETED)
            if sender.done():
                sender.result()
            await receiver
            if sent:
                raise Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator ended the line without a word")
        finally:
            line.cut()
            for task in (receiver, sender):
                task.cancel()
            await asyncio.gather(receiver, sender, return_exceptions=True)
            before, self._oldest = self._oldest, next(iter(sent.values()), None)
            if before != self._oldest:
                self._failures = 0

    async def _send(self, line: Line, sent: dict[str, Letter], room: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + _LONGEST_LINE_S
        after = 0
        while loop.time() < ends:
            self._work.clear()
            self._hurry.clear()
            letters = await self._outbox.waiting(self._tenant, after=after, limit=_READ)
            for letter in letters:
                await room.acquire()
                sent[letter.id] = letter
                after = letter.sequence
                if not await line.send(letter.payload, want_report=letter.id in self._reports):
                    return
            if len(letters) == _READ:
                continue
            try:
                async with asyncio.timeout(self._idle_s):
                    await self._work.wait()
            except TimeoutError:
                break
            # What is posted in a moment shares a trip, unless somebody waits for a report.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GATHER_S):
                    await self._hurry.wait()
        else:
            self._work.set()  # there may be more, for the next line
        await line.hang_up()

    async def _receive(self, line: Line, sent: dict[str, Letter], room: asyncio.Semaphore) -> None:
        arrived: list[int] = []
        last = ""
        try:
            async for outcome in line.outcomes():
                match outcome:
                    case RunReported(content):
                        report = self._reports.get(last)
                        if report is not None and not report.done():
                            report.set_result(content)
                        continue
                    case Delivered(last):
                        if (letter := sent.pop(last, None)) is not None:
                            arrived.append(letter.sequence)
                    case Refused(last, error):
                        if (letter := sent.pop(last, None)) is not None:
                            await self._set_aside(letter, error)
                room.release()
                self.trouble = None
                if len(arrived) >= _READ or (arrived and not sent):
                    await self._outbox.remove(arrived)
                    arrived.clear()
        finally:
            if arrived:
                await self._outbox.remove(arrived)

    async def _suspect(self, error: MeshError) -> None:
        """Counts how often the evaluator failed at the same letter; outcomes come in the order of sending.

        An evaluator that is away is waited for, however long. One that is there and fails, time after time at
        the same letter, would be sent it for ever, and those behind it never.
        """
        self._failures += 1
        if self._failures >= _POISONED and self._oldest is not None:
            with contextlib.suppress(Unavailable):  # an outbox that cannot be written: it is sent again
                await self._set_aside(self._oldest, error)

    async def _set_aside(self, letter: Letter, error: MeshError) -> None:
        # Sending it again would only stop those behind it; the file keeps it for a person to look at.
        _log.error("the evaluator refuses observation %s: %s", letter.id, error.reason)
        await self._outbox.refuse(letter.sequence, f"{error.reason}: {error}")
        if (report := self._reports.get(letter.id)) is not None:
            _give_up(report, error)


def _give_up(report: asyncio.Future[object], error: MeshError) -> None:
    if not report.done():
        report.set_exception(error)
        report.exception()  # seen by whoever waits; nobody has to
