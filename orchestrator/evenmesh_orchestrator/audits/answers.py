"""Answers to the contexts of an audit, each requested once, a little ahead of its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import islice
from typing import Any

from evenmesh.generator.v1.generator_service_pb2 import Answer
from evenmesh.wire.errors import MeshError
from evenmesh_core.arrays import IntArray
from evenmesh_orchestrator.asks.budgets import HandledFailure

Outcome = Answer | MeshError
"""An answer, or why there is none."""
Call = Callable[[Sequence[IntArray]], Coroutine[Any, Any, Sequence[Outcome] | HandledFailure]]
"""Answers several contexts in one call."""


class Answers:
    """Requests the answers to contexts, a few calls ahead of the reader.

    Args:
        ask: answers several contexts in one call.
        feed: the contexts in the order in which they are read, each once.
        batch_size: contexts of one call.
        in_flight: concurrent calls.
    """

    def __init__(self, ask: Call, feed: Iterator[IntArray], *, batch_size: int, in_flight: int) -> None:
        self._ask = ask
        self._feed = feed
        self._batch_size = batch_size
        self._in_flight = in_flight
        self._done: dict[bytes, Outcome] = {}
        self._calls: dict[asyncio.Task[Sequence[Outcome] | HandledFailure], list[IntArray]] = {}
        self._any = False

    async def of(self, row: IntArray) -> Outcome:
        """Return the answer to a context of the feed, or the reason for its absence.

        Raises:
            MeshError: the generator refused, or failed before its first answer.
        """
        key = row.tobytes()
        while key not in self._done:
            self._call()
            finished, _ = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
            for call in finished:
                self._take(self._calls.pop(call), call.result())
        return self._done[key]

    async def close(self) -> None:
        """Cancel the calls in flight."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _call(self) -> None:
        while len(self._calls) < self._in_flight:
            rows = list(islice(self._feed, self._batch_size))
            if not rows:
                return
            self._calls[asyncio.create_task(self._ask(rows))] = rows

    def _take(self, rows: Sequence[IntArray], outcome: Sequence[Outcome] | HandledFailure) -> None:
        if isinstance(outcome, HandledFailure):
            if not self._any:
                raise outcome.error
            outcome = [outcome.error] * len(rows)
        else:
            self._any = True
        for row, result in zip(rows, outcome, strict=True):
            self._done[row.tobytes()] = result
