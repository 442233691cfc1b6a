"""Answers to the contexts of an audit, asked for a little ahead of their turn and each once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice

from meshkit.errors import MeshError
from orchestrator.budgets import Setback
from orchestrator.domain import Answer
from ragcore.arrays import IntArray

Outcome = Answer | MeshError
"""An answer, or why there is none."""
Call = Callable[[Sequence[IntArray]], Awaitable[Sequence[Outcome] | Setback]]
"""Answers some contexts at once."""


class Answers:
    """The answers to contexts, asked for a little ahead of their turn and each once.

    Args:
        ask: answers some contexts at once.
        feed: the contexts in the order in which they are wanted, each once.
        size: contexts of one call.
        at_once: calls under way.
    """

    def __init__(
        self,
        ask: Call,
        feed: Iterator[IntArray],
        *,
        size: int,
        at_once: int,
    ) -> None:
        self._ask = ask
        self._feed = feed
        self._size = size
        self._at_once = at_once
        self._done: dict[bytes, Outcome] = {}
        self._calls: dict[asyncio.Task[Sequence[Outcome] | Setback], list[IntArray]] = {}
        self._any = False

    async def of(self, row: IntArray) -> Outcome:
        """The answer to a context that is fed, or why there is none.

        Raises:
            MeshError: the generator refuses, or failed before it answered anything.
        """
        key = row.tobytes()
        while key not in self._done:
            self._call()
            finished, _ = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
            for call in finished:
                self._take(self._calls.pop(call), call.result())
        return self._done[key]

    async def close(self) -> None:
        """Stops what is under way."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _call(self) -> None:
        while len(self._calls) < self._at_once:
            rows = list(islice(self._feed, self._size))
            if not rows:
                return
            self._calls[asyncio.create_task(_awaited(self._ask(rows)))] = rows

    def _take(self, rows: Sequence[IntArray], outcome: Sequence[Outcome] | Setback) -> None:
        if isinstance(outcome, Setback):
            if not self._any:
                raise outcome.error
            results: Sequence[Outcome] = [outcome.error] * len(rows)
        else:
            self._any = True
            results = outcome
        for row, result in zip(rows, results, strict=True):
            self._done[row.tobytes()] = result


async def _awaited(
    call: Awaitable[Sequence[Outcome] | Setback],
) -> Sequence[Outcome] | Setback:
    return await call
