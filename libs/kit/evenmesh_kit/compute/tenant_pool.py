"""Run work in threads, the tenants in turns."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.security import caller as callers

P = ParamSpec("P")
T = TypeVar("T")


class TenantPool(ComputePool):
    """Threads for compute that no tenant can hold alone. For one event loop.

    Each tenant has a queue, and a free thread takes the next piece of work from the queues in turns. A tenant
    has at most ``threads`` pieces at work, and there is one thread more, so that another tenant never waits
    for a long piece of this one. Work of a request that takes long should come in pieces.

    Args:
        threads: most pieces of one tenant at work, [1, inf).
        name: prefix of the threads' names.
    """

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads + 1, name)
        self._most = threads
        self._running: Counter[str] = Counter()
        # In the order of their turns; only tenants that wait.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` as :meth:`ComputePool.run` does, when its tenant's turn has come."""
        loop = asyncio.get_running_loop()
        tenant = callers.current().tenant
        if tenant in self._waiting or not self._may_begin(tenant):
            turn = loop.create_future()
            self._waiting.setdefault(tenant, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._ended(tenant)
                raise
        else:
            self._running[tenant] += 1
        context = contextvars.copy_context()
        try:
            work: Future[T] = self._executor.submit(context.run, functools.partial(fn, *args, **kwargs))
        except BaseException:
            self._ended(tenant)
            raise
        work.add_done_callback(functools.partial(self._tell, loop, tenant))
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """Do as :meth:`ComputePool.close`; work that waits for its turn is dropped too."""
        for turns in self._waiting.values():
            for turn in turns:
                turn.cancel()
        self._waiting.clear()
        super().close()

    def _may_begin(self, tenant: str) -> bool:
        return self._running[tenant] < self._most and self._running.total() <= self._most

    def _tell(self, loop: asyncio.AbstractEventLoop, tenant: str, _: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._ended, tenant)

    def _ended(self, tenant: str) -> None:
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        for waiting in tuple(self._waiting):
            self._begin(waiting)

    def _begin(self, tenant: str) -> None:
        """Begin the next piece of a tenant that waits, if it may, and put the tenant last."""
        turns = self._waiting[tenant]
        while turns and turns[0].done():  # its caller is gone
            turns.popleft()
        if turns and self._may_begin(tenant):
            del self._waiting[tenant]
            self._waiting[tenant] = turns
            self._running[tenant] += 1
            turns.popleft().set_result(None)
        if not turns:
            del self._waiting[tenant]
