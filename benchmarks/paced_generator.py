"""The real generator service with a model that takes its time: a few answers at once, so long for each.

It waits instead of computing, so that its pace is its own and not that of whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

import numpy as np

from benchmarks.stand_in_generator import StandIn, main
from evenmesh_generator.domain import Answer, GenerationRequest
from evenmesh_generator.ports import Cancellation
from evenmesh_kit.process.serving import run

SLOTS_VARIABLE: Final = "EVENMESH_BENCH_SLOTS"
"""Answers at a time."""
ANSWER_VARIABLE: Final = "EVENMESH_BENCH_ANSWER_S"
"""Seconds that one takes, about."""
_SPREAD: Final = (0.8, 1.2)
_SEED: Final = 7


class Paced(StandIn):
    """Answers as the stand-in does, each after a while, first come first served.

    A while is a fifth more or less: answers of equal length would end in waves.

    Args:
        slots: answers at a time.
        answer_s: seconds that one takes.
    """

    def __init__(self, slots: int, answer_s: float) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._answer_s = answer_s
        self._rng = np.random.default_rng(_SEED)

    async def _take_time(self) -> None:
        async with self._slots:
            await asyncio.sleep(self._answer_s * self._rng.uniform(*_SPREAD))

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        await self._take_time()
        async for part in super().generate_stream(request, cancel):
            yield part

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        await self._take_time()
        return await super().generate(request, cancel)


if __name__ == "__main__":
    sys.exit(run(partial(main, Paced(int(os.environ[SLOTS_VARIABLE]), float(os.environ[ANSWER_VARIABLE])))))
