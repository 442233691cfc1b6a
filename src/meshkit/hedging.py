"""Hedged calls: a call that takes long is made a second time, and the first answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import grpc

from meshkit.errors import MeshError

T = TypeVar("T")

_MOST_SAVED: Final = 10.0


class Hedging:
    """Makes calls again that take longer than usual: Dean and Barroso, The Tail at Scale, CACM 56(2), 2013.

    Only for calls that change nothing, to services of several replicas, and only where two answers are the
    same: a seed sees to that. gRPC's own hedging (gRFC A6) is not in its C core, on which Python stands
    (grpcio 1.85 reads no ``hedgingPolicy``).

    Args:
        delay_s: how long a call may take before it is made again; about the 95th percentile. Seconds, (0,
            inf); 0 for never.
        share: most hedges per call, over time; a few are saved up. [0, 1].
        on_hedge: told of every second call: whether it was the one that answered.
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
        """The first answer of one call or two. The other call is cancelled, and has ended on return.

        An error ends it too, unless it is UNAVAILABLE and the other call is still under way.
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
            winner = await _settled(calls)
            if len(calls) > 1:
                self._on_hedge(winner is calls[1])
            return winner.result()
        finally:
            for one in calls:
                one.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def _settled(calls: Sequence[asyncio.Future[T]]) -> asyncio.Future[T]:
    """The call that decides."""
    waiting = set(calls)
    while True:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for one in sorted(done, key=calls.index):
            if not waiting or not _is_away(one):
                return one


def _is_away(call: asyncio.Future[T]) -> bool:
    if call.cancelled():
        return False
    error = call.exception()
    return isinstance(error, MeshError) and error.code is grpc.StatusCode.UNAVAILABLE
