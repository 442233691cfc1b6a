"""One model of a Triton server: its running requests, and whether it is up; and one model of several."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from evenmesh.wire.errors import MeshError, Unavailable, restored
from evenmesh_generator.backends.triton.client import TritonClient
from evenmesh_generator.backends.triton.errors import REASON, ModelProcessGone, ModelUnavailable, ServerGone
from evenmesh_generator.backends.triton.servers import TritonServer
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_kit.compute.tenant_places import TenantPlaces

T = TypeVar("T")

MARGIN_S = 0.02
"""What the service keeps of a deadline for its own answer. Seconds."""


class _Running:
    """A running request, in its own task."""

    def __init__(self) -> None:
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.ended_with: Exception | None = None

    def end(self, error: Exception) -> None:
        """End the request with ``error``, wherever it waits."""
        if self.ended_with is None and not self._task.done():
            self.ended_with = error
            self._task.cancel()


class ModelEndpoint:
    """Sends requests to one model of a Triton server while it is available. For one event loop.

    Args:
        name: Triton's name of the model.
        places: those for running requests, shared by all models of the server.
        server: address of the server, for the log.
    """

    def __init__(self, name: str, places: TenantPlaces, server: str = "") -> None:
        self.name = name
        self.server = server
        self._places = places
        self._running: set[_Running] = set()
        self._unavailable: Unavailable | None = None
        self._responded_at = -float("inf")
        self.on_failure: Callable[[], object] = lambda: None
        """Called when a request shows that something is wrong."""
        self.on_change: Callable[[], object] = lambda: None
        """Called when the model has gone away or come back."""

    @property
    def up(self) -> bool:
        """Return whether requests are sent there."""
        return self._unavailable is None

    @property
    def in_flight(self) -> int:
        """Return the requests that run or wait for a place."""
        return len(self._running)

    @property
    def silent_s(self) -> float:
        """Return the seconds since it last answered anything, (0, inf]."""
        return time.monotonic() - self._responded_at

    def mark_unavailable(self, why: Unavailable, *, fail_running: bool) -> None:
        """Refuse requests from now on with ``why``; with ``fail_running``, end running ones too."""
        changed, self._unavailable = self._unavailable is None, why
        if fail_running:
            for running in tuple(self._running):
                running.end(_copy(why))
        if changed:
            self.on_change()

    def record_response(self) -> None:
        """Record that the model has answered a request, or a part of one."""
        self._responded_at = time.monotonic()

    def mark_available(self) -> None:
        """Accept requests again."""
        if self._unavailable is not None:
            self._unavailable = None
            self.on_change()

    async def run(self, work: Callable[[float], Awaitable[T]], cancel: Cancellation) -> T:
        """Run a request once there is a place for it; the calling task must be the request's own.

        Args:
            work: sends it, given the seconds it may take.

        Raises:
            MeshError: the model is away, the deadline has passed, or what the model says.
            Cancelled: the caller has gone.
        """
        cancel.check()
        if self._unavailable is not None:
            raise _copy(self._unavailable)
        loop, running = asyncio.get_running_loop(), _Running()

        def on_cancel() -> None:
            loop.call_soon_threadsafe(running.end, Cancelled())

        self._running.add(running)
        try:
            with cancel.notifying(on_cancel):
                async with self._places.hold(cancel.deadline):
                    return await work(cancel.deadline.budget(margin_s=MARGIN_S))
        except asyncio.CancelledError:
            # What ended the request has cancelled its task; another server may still answer it.
            if running.ended_with is None or cast("asyncio.Task[Any]", asyncio.current_task()).uncancel():
                raise
            raise running.ended_with from None
        except (ModelProcessGone, ServerGone, ModelUnavailable) as error:
            self._running.discard(running)
            # The other requests of a dead process would wait in vain until their deadlines.
            self.mark_unavailable(error, fail_running=isinstance(error, ModelProcessGone))
            self.on_failure()
            raise
        finally:
            self._running.discard(running)


@dataclass(eq=False)
class Replica:
    """A model at one of several servers.

    Attributes:
        check_now: has its health checked at once.
    """

    server: TritonServer
    endpoint: ModelEndpoint
    check_now: Callable[[], object] = lambda: None

    @property
    def client(self) -> TritonClient:
        """Return the connection to its server."""
        return self.server.client


class ModelReplicas:
    """One model at every server that has it: a request goes to the one with the least to do.

    One that fails because its server or its model is away, before anything of it was read, is tried once
    more, at another server where there is one. For one event loop.

    Args:
        name: Triton's name of the model.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.on_change: Callable[[], object] = lambda: None
        """Called when the model has gone away or come back at a server."""
        self._replicas: dict[TritonServer, Replica] = {}
        self._uses = 0

    @property
    def all(self) -> list[Replica]:
        """Return the model at each server."""
        return list(self._replicas.values())

    @property
    def up(self) -> bool:
        """Return whether some server answers."""
        return any(one.endpoint.up for one in self._replicas.values())

    @property
    def in_flight(self) -> int:
        """Return the requests that run or wait for a place."""
        return sum(one.endpoint.in_flight for one in self._replicas.values())

    def add(self, server: TritonServer, *, up: bool) -> Replica:
        """Return the model at one more server; unless it is ``up``, its first check sends requests there."""
        endpoint = ModelEndpoint(self.name, server.places, server.client.target)
        if not up:
            endpoint.mark_unavailable(ServerGone("the Triton server cannot be reached"), fail_running=False)
        endpoint.on_change = lambda: self.on_change()
        found = self._replicas[server] = Replica(server, endpoint)
        return found

    def remove(self, server: TritonServer) -> None:
        """Forget the model at a server."""
        del self._replicas[server]
        self.on_change()

    def at(self, server: TritonServer) -> Replica | None:
        """Return the model at this server; None if it is not called."""
        return self._replicas.get(server)

    async def run(
        self,
        work: Callable[[Replica, float], Awaitable[T]],
        cancel: Cancellation,
        again: Callable[[], bool] = lambda: True,
    ) -> T:
        """Run a request at the server with the least to do; the calling task must be the request's own.

        Args:
            work: sends it to a server, given the seconds it may take.
            again: returns whether it may still be sent to another one.

        Raises:
            MeshError: the model is away, the deadline has passed, or what the model says.
            Cancelled: the caller has gone.
        """
        cancel.check()
        first = self._choose(None)
        try:
            return await first.endpoint.run(partial(work, first), cancel)
        except Unavailable as error:
            second = self._choose(first)
            if error.reason != REASON or second is first or not second.endpoint.up or not again():
                raise
        return await second.endpoint.run(partial(work, second), cancel)

    def _choose(self, other_than: Replica | None) -> Replica:
        candidates = [one for one in self.all if one is not other_than] or self.all

        def order(one: Replica) -> tuple[bool, bool, int, int]:
            # A server that no name lists is about to end. Of equals, the one unused for longest.
            return not one.endpoint.up, not one.server.listed, one.server.load, one.server.used

        chosen = min(candidates, key=order)
        self._uses += 1
        chosen.server.used = self._uses
        return chosen


def _copy(error: MeshError) -> MeshError:
    """Return a copy of the error for one more request: a raised one keeps the frames of those before."""
    return restored(error.code, error.reason, error.message, error.field, error.retry_after_s)
