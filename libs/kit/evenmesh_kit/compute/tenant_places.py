"""Places for running requests that tenants share: who holds fewest is next, and none exceeds its share."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_kit.security import caller as callers


@dataclass(slots=True)
class _Line:
    """The requests of one tenant.

    Attributes:
        most: most places that it may hold.
        held: places that it holds.
        last: number of the place that it got last; 0 before the first.
        waiting: done when a request has its place, cancelled when it has given up.
    """

    most: int
    held: int = 0
    last: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)


class TenantPlaces:
    """Bounds the requests that run at a database, or at a server of another project. For one event loop.

    Of the tenants that wait, the one that holds fewest places is next, of equals the one that got its last
    place first; each tenant's requests begin in the order of their arrival. An authenticated tenant holds at
    most its share of the places, so that another one finds one however long its requests take; of a single
    place it has all. What runs for no caller waits like a tenant of its own.

    Args:
        places: most requests at a time, [1, inf).
        share: largest part of the places that one authenticated tenant may hold, (0, 1].
        where: what the places are at, for errors: ``the model server``.
        margin_s: what is kept of a deadline for the answer to the caller. Seconds, [0, inf).
    """

    def __init__(self, places: int, *, share: float, where: str, margin_s: float = 0.0) -> None:
        if places < 1 or not 0 < share <= 1:
            raise ValueError(f"places={places}, share={share}")
        self._free = self._places = places
        self._share = max(1, math.floor(places * share))
        self._where = where
        self._margin_s = margin_s
        self._given = 0
        # By tenant; kept while a tenant holds a place or waits for one.
        self._lines: dict[str, _Line] = {}

    @property
    def held(self) -> int:
        """Return the places that are held."""
        return self._places - self._free

    @property
    def waiting(self) -> int:
        """Return the requests that wait for a place; may be read from any thread."""
        return sum(len(line.waiting) for line in tuple(self._lines.values()))

    @asynccontextmanager
    async def hold(self, deadline: Deadline) -> AsyncIterator[None]:
        """Hold a place for the caller's tenant, once there is one.

        Raises:
            DeadlineExceeded: none came free in time.
        """
        budget_s = deadline.budget(margin_s=self._margin_s)
        caller = callers.current()
        # No tenant has an empty name.
        tenant, most = ("", self._places) if caller is callers.ANYONE else (caller.tenant, self._share)
        line = self._lines.setdefault(tenant, _Line(most))
        turn = asyncio.get_running_loop().create_future()
        line.waiting.append(turn)
        self._admit()
        if not turn.done():
            try:
                async with asyncio.timeout(budget_s):
                    await turn
            except BaseException as error:
                if turn.cancelled():
                    line.waiting.remove(turn)
                    self._forget_idle()
                else:  # the place came at the same moment
                    self._release(line)
                if isinstance(error, TimeoutError):
                    raise DeadlineExceeded(f"no place at {self._where} came free in time") from None
                raise
        try:
            yield
        finally:
            self._release(line)

    def _admit(self) -> None:
        """Give the free places away."""
        while self._free:
            lines = [
                line
                for line in self._lines.values()
                if line.held < line.most and any(not turn.done() for turn in line.waiting)
            ]
            if not lines:
                return
            line = min(lines, key=lambda one: (one.held, one.last))
            turn = next(one for one in line.waiting if not one.done())
            line.waiting.remove(turn)
            self._given += 1
            line.last = self._given
            line.held += 1
            self._free -= 1
            turn.set_result(None)

    def _release(self, line: _Line) -> None:
        line.held -= 1
        self._free += 1
        self._admit()
        self._forget_idle()

    def _forget_idle(self) -> None:
        for tenant in [name for name, line in self._lines.items() if not line.held and not line.waiting]:
            del self._lines[tenant]
