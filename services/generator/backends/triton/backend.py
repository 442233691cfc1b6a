"""One model of a Triton server: what is under way there, and whether it is up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

from meshkit.deadline import Deadline
from meshkit.errors import DeadlineExceeded, MeshError, Unavailable, restored
from services.generator.backends.triton.errors import ModelAway, ModelProcessGone, ServerGone
from services.generator.ports import Cancellation, Cancelled

T = TypeVar("T")

MARGIN_S = 0.02
"""What the service keeps of a deadline for its own answer. Seconds."""


class _Running:
    """A request under way, in a task of its own."""

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.ended_with: Exception | None = None

    def end(self, error: Exception) -> None:
        """Ends it with ``error``, wherever it waits."""
        if self.ended_with is None and not self._task.done():
            self.ended_with = error
            self._task.cancel()


class Backend:
    """A model of a Triton server as the requests of this service meet it. For one event loop.

    Args:
        name: Triton's name of the model.
        slots: places for requests under way, shared by all models of the server.
    """

    def __init__(self, name: str, slots: asyncio.Semaphore) -> None:
        self.name = name
        self._slots = slots
        self._running: set[_Running] = set()
        self._away: Unavailable | None = None
        self._heard_at = -float("inf")
        self.on_trouble: Callable[[], object] = lambda: None
        """Called when a request shows that something is wrong."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when the model has gone away or come back."""

    @property
    def up(self) -> bool:
        """Whether requests are sent there."""
        return self._away is None

    @property
    def in_flight(self) -> int:
        """Requests under way or waiting for a place."""
        return len(self._running)

    @property
    def silent_s(self) -> float:
        """Seconds since it last answered anything, (0, inf]."""
        return time.monotonic() - self._heard_at

    def gone(self, why: Unavailable, *, for_good: bool) -> None:
        """Refuses requests from now on, with ``why``; ``for_good``: what is under way will not end either."""
        changed, self._away = self._away is None, why
        if for_good:
            for running in tuple(self._running):
                running.end(_anew(why))
        if changed:
            self.on_change()

    def heard(self) -> None:
        """It has answered a request, or a part of one."""
        self._heard_at = time.monotonic()

    def back(self) -> None:
        """Takes requests again."""
        if self._away is not None:
            self._away = None
            self.on_change()

    async def run(self, work: Callable[[float], Awaitable[T]], cancel: Cancellation) -> T:
        """Runs a request once there is a place for it; the calling task must be the request's own.

        Args:
            work: sends it, given the seconds it may take.

        Raises:
            MeshError: the model is away, the deadline has passed, or what the model says.
            Cancelled: the caller has gone.
        """
        cancel.check()
        if self._away is not None:
            raise _anew(self._away)
        loop, running = asyncio.get_running_loop(), _Running()

        def on_cancel() -> None:
            loop.call_soon_threadsafe(running.end, Cancelled())

        self._running.add(running)
        try:
            with cancel.telling(on_cancel):
                async with self._place(cancel.deadline):
                    return await work(cancel.deadline.budget(margin_s=MARGIN_S))
        except asyncio.CancelledError:
            if running.ended_with is None:
                raise
            raise running.ended_with from None
        except (ModelProcessGone, ServerGone, ModelAway) as error:
            self._running.discard(running)
            # The others of a dead process would wait for nothing until their deadlines.
            self.gone(error, for_good=isinstance(error, ModelProcessGone))
            self.on_trouble()
            raise
        finally:
            self._running.discard(running)

    @asynccontextmanager
    async def _place(self, deadline: Deadline) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(deadline.budget(margin_s=MARGIN_S)):
                await self._slots.acquire()
        except TimeoutError:
            raise DeadlineExceeded("no place at the Triton server came free in time") from None
        try:
            yield
        finally:
            self._slots.release()


def _anew(error: MeshError) -> MeshError:
    """The error for one more request: a raised one keeps the frames of those before."""
    return restored(error.code, error.reason, error.message, error.field, error.retry_after_s)
