"""Hedged calls: repeat a slow call, and use the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import grpc

from evenmesh.wire.errors import MeshError

T = TypeVar("T")

_MOST_SAVED: Final = 10.0


class Hedging:
    """Repeats calls that take longer than usual: Dean and Barroso, The Tail at Scale, CACM 56(2), 2013.

    Only for calls without effect, to services of several replicas, where both answers are the same, as with a
    seed. gRPC's own hedging (gRFC A6) is not in the C core that Python uses (grpcio 1.85 reads no
    ``hedgingPolicy``).

    Args:
        delay_s: time after which a call is repeated; about the 95th percentile. Seconds, (0, inf); 0 for
        never.
        share: most second calls per call, over time; up to ten are saved up. [0, 1].
        on_hedge: called after every second call with whether it answered first.
    """

    def __init__(
        self,
        delay_s: float,
        *,
        share: float = 0.1,
        on_hedge: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._delay_s = delay_s
        self._share = share
        self._on_hedge = on_hedge
        self._saved = 1.0

    async def first(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the first answer of one call or two; the other call is cancelled and has ended on return.

        An error counts as an answer, unless it is UNAVAILABLE and the other call still runs.
        """
        if not self._delay_s:
            return await call()
        self._saved = min(_MOST_SAVED, self._saved + self._share)
        calls = [asyncio.ensure_future(call())]
        try:
            await asyncio.wait(calls, timeout=self._delay_s)
            if not calls[0].done() and self._saved >= 1.0:
                self._saved -= 1.0
                calls.append(asyncio.ensure_future(call()))
            winner = await _first_answer(calls)
            if len(calls) > 1:
                self._on_hedge(winner is calls[1])
            return winner.result()
        finally:
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def _first_answer(calls: Sequence[asyncio.Future[T]]) -> asyncio.Future[T]:
    waiting = set(calls)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in sorted(done, key=calls.index):
            if not waiting or not _is_unavailable(one):
                return one


def _is_unavailable(call: asyncio.Future[T]) -> bool:
    if call.cancelled():
        return False
    error = call.exception()
    return isinstance(error, MeshError) and error.code is grpc.StatusCode.UNAVAILABLE
