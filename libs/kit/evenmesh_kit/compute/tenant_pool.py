"""Run work in threads, the tenants in turns."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, ParamSpec, TypeVar

from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.tenant_time import RecentTenants, TenantTime
from evenmesh_kit.security import caller as callers

P = ParamSpec("P")
T = TypeVar("T")

_CREDIT_S: Final = 1.0
"""Most processor time that a tenant may have to its credit. Seconds."""
_RECENT_S: Final = 60.0
"""How long a tenant counts after it has asked. Seconds."""
_YIELD: Final = 10
"""How far threads yield the processors while they work for who has had more time, as ``nice`` counts."""


class _Timed(Generic[T]):
    """A call that measures the processor time of its thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self.seconds = 0.0

    def __call__(self) -> T:
        began = time.thread_time()
        try:
            return self._call()
        finally:
            self.seconds = time.thread_time() - began


class TenantPool(ComputePool):
    """Threads for compute that no tenant can hold alone. For one event loop.

    Each tenant has a queue, and a free thread takes the next piece of work from the queues in turns. A tenant
    has at most ``threads`` pieces at work, and there is one thread more, so that another tenant never waits
    for a long piece of this one. Work of a request that takes long should come in pieces.

    While several tenants ask, a tenant that has had more processor time here than another works in threads
    that yield the processors to those of others.

    Args:
        threads: most pieces of one tenant at work, [1, inf).
        name: prefix of the threads' names.
        nice: as of :class:`ComputePool`.
    """

    def __init__(self, threads: int, name: str, nice: int = 0) -> None:
        super().__init__(threads + 1, name, nice)
        self._yielding = ComputePool((threads + 1) // 2, f"{name}-yielding", min(nice + _YIELD, 19))
        self._most = threads
        self._time = TenantTime(_CREDIT_S)
        self._recent = RecentTenants(_RECENT_S, time.monotonic)
        self._running: Counter[str] = Counter()
        # In the order of their turns; only tenants that wait.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` as :meth:`ComputePool.run` does, when its tenant's turn has come."""
        loop = asyncio.get_running_loop()
        tenant = callers.current().tenant
        self._recent.note(tenant)
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
        call = _Timed(functools.partial(context.run, fn, *args, **kwargs))
        try:
            work: Future[T] = self._threads(tenant).submit(call)
        except BaseException:
            self._ended(tenant)
            raise
        work.add_done_callback(functools.partial(self._report, loop, tenant, call))
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """Do as :meth:`ComputePool.close`; work that waits for its turn is dropped too."""
        for turns in self._waiting.values():
            for turn in turns:
                turn.cancel()
        self._waiting.clear()
        self._yielding.close()
        super().close()

    def _may_begin(self, tenant: str) -> bool:
        return self._running[tenant] < self._most and self._running.total() <= self._most

    def _threads(self, tenant: str) -> ThreadPoolExecutor:
        """Return the threads for a tenant's next piece of work."""
        self._time.next([tenant])
        yields = self._recent.others(tenant) and not self._time.in_credit(tenant)
        return self._yielding.executor if yields else self.executor

    def _report(self, loop: asyncio.AbstractEventLoop, tenant: str, call: _Timed[T], _: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(self._ended, tenant, call.seconds)

    def _ended(self, tenant: str, seconds: float = 0.0) -> None:
        self._time.charge(tenant, seconds)
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
