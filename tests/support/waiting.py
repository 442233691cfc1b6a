"""Wait for what nobody announces."""

import asyncio
from collections.abc import Callable
from inspect import isawaitable


async def until(holds: Callable[[], object], within_s: float = 60) -> None:
    """Wait until a condition holds, or what it returns to be awaited does.

    Raises:
        TimeoutError: it does not within so many seconds.
    """
    async with asyncio.timeout(within_s):
        while not (await found if isawaitable(found := holds()) else found):
            await asyncio.sleep(0.005)
