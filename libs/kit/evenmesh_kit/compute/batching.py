"""Micro-batching: run the items of concurrent callers together and give each caller its own result."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.compute.tenant_turns import TenantTurns
from evenmesh_kit.security import caller as callers

I = TypeVar("I")  # noqa: E741 - the contract's name
O = TypeVar("O")  # noqa: E741


@dataclass(slots=True, eq=False)
class _Entry(Generic[I, O]):
    item: I
    tenant: str
    cost: int
    due: float
    result: asyncio.Future[O]


class MicroBatcher(Generic[I, O]):
    """Collects items and runs them in batches, one batch at a time, tenants in turns.

    A batch starts when no other runs and it is full, or its oldest item has waited ``max_delay_s``. It takes
    the items of the tenants in turns by their cost, each tenant's in the order of their arrival. It runs
    outside every caller's context, without a deadline or trace of any of them.

    Args:
        run: computes a batch and returns one result or exception per item, in order. If it raises, every item
            of the batch gets that exception.
        max_size: most items in a batch, [1, inf).
        max_delay_s: longest wait for more items. Seconds, [0, inf).
        cost: cost of one item, [0, inf).
        max_cost: most cost in a batch, [1, inf), None for no limit; a costlier item runs alone.
        on_batch: called at the start of a batch with the wait of each item. Seconds.
    """

    def __init__(
        self,
        run: Callable[[Sequence[I]], Awaitable[Sequence[O | BaseException]]],
        *,
        max_size: int,
        max_delay_s: float,
        cost: Callable[[I], int] = lambda _: 1,
        max_cost: int | None = None,
        on_batch: Callable[[Sequence[float]], None] = lambda _: None,
    ) -> None:
        if max_size < 1 or max_delay_s < 0 or (max_cost is not None and max_cost < 1):
            raise ValueError(f"max_size={max_size}, max_delay_s={max_delay_s}, max_cost={max_cost}")
        self._run = run
        self._max_size = max_size
        self._max_delay_s = max_delay_s
        self._cost = cost
        self._max_cost = max_cost
        self._on_batch = on_batch
        self._queue: TenantTurns[_Entry[I, O]] = TenantTurns(
            lambda entry: entry.tenant, lambda entry: max(1, entry.cost)
        )
        self._arrived = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def waiting(self) -> Sequence[I]:
        """Return the items that are queued and in no batch yet, tenant by tenant; thread-safe."""
        return [entry.item for entry in self._queue if not entry.result.done()]

    async def submit(self, item: I) -> O:
        """Compute one item.

        Raises:
            Unavailable: the batcher is closed.
            BaseException: the item's own failure.
        """
        if self._closing:
            raise Unavailable("SHUTTING_DOWN", "the service is shutting down")
        loop = asyncio.get_running_loop()
        tenant = callers.current().tenant
        entry = _Entry(item, tenant, self._cost(item), loop.time() + self._max_delay_s, loop.create_future())
        self._queue.append(entry)
        self._arrived.set()
        if self._worker is None:
            self._worker = loop.create_task(self._work(), context=contextvars.Context())
        return await cast(asyncio.Future[O], entry.result)

    async def close(self) -> None:
        """Accept no more items, run what is queued without waiting for more, and return when it has run."""
        self._closing = True
        self._arrived.set()
        if self._worker is not None:
            await asyncio.shield(self._worker)

    async def _work(self) -> None:
        try:
            while await self._filled():
                batch = self._take()
                if batch:
                    now = asyncio.get_running_loop().time()
                    self._on_batch([now - (entry.due - self._max_delay_s) for entry in batch])
                    await self._run_batch(batch)
        finally:
            self._worker = None

    async def _filled(self) -> bool:
        """Wait until a batch should start; False if nothing is queued any more."""
        loop = asyncio.get_running_loop()
        while True:
            while gone := [entry for entry in self._queue.heads() if entry.result.done()]:
                for entry in gone:
                    self._queue.remove(entry)
            if not self._queue:
                return False
            wait = min(entry.due for entry in self._queue.heads()) - loop.time()
            if wait <= 0 or self._closing or self._is_full():
                return True
            self._arrived.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._arrived.wait()
            except TimeoutError:
                return True

    def _is_full(self) -> bool:
        if len(self._queue) < self._max_size and self._max_cost is None:
            return False
        size = cost = 0
        for entry in self._queue:
            if entry.result.done():
                continue
            size, cost = size + 1, cost + entry.cost
            if size >= self._max_size or (self._max_cost is not None and cost >= self._max_cost):
                return True
        return False

    def _take(self) -> list[_Entry[I, O]]:
        batch: list[_Entry[I, O]] = []
        cost = 0
        while len(batch) < self._max_size and (entry := self._queue.first()) is not None:
            if entry.result.done():  # its caller is gone
                self._queue.remove(entry)
                continue
            cost += entry.cost
            if batch and self._max_cost is not None and cost > self._max_cost:
                break
            batch.append(entry)
            self._queue.take(entry)
        return batch

    async def _run_batch(self, batch: list[_Entry[I, O]]) -> None:
        results: Sequence[O | BaseException]
        try:
            results = await self._run([entry.item for entry in batch])
            if len(results) != len(batch):
                raise RuntimeError(f"a batch of {len(batch)} items gave {len(results)} results")
        except asyncio.CancelledError:
            for entry in batch:
                entry.result.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - handed to every caller
            results = [error] * len(batch)
        for entry, result in zip(batch, results, strict=True):
            if entry.result.done():
                continue
            if isinstance(result, BaseException):
                entry.result.set_exception(result)
            else:
                entry.result.set_result(result)
