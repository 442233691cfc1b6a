"""Wait for what nobody announces."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from inspect import isawaitable
from pathlib import Path


async def until(holds: Callable[[], object], within_s: float = 60) -> None:
    """Wait until a condition holds, or what it returns to be awaited does.

    Raises:
        TimeoutError: it does not within so many seconds.
    """
    async with asyncio.timeout(within_s):
        while not (await found if isawaitable(found := holds()) else found):
            await asyncio.sleep(0.005)


def wait_until(holds: Callable[[], object], within_s: float = 60, *, why: str = "") -> None:
    """Wait until a condition holds, where nothing else of this thread has to go on.

    Raises:
        AssertionError: it does not within so many seconds; ``why`` says what is missing.
    """
    ends = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends, why
        time.sleep(0.02)


def until_answers(process: subprocess.Popen[bytes], url: str, log: Path, within_s: float) -> None:
    """Wait until a process answers at a URL.

    Raises:
        AssertionError: it ends, or does not answer within so many seconds; with the end of its log.
    """
    import httpx

    ends = time.monotonic() + within_s
    while process.poll() is None and time.monotonic() < ends:
        try:
            httpx.get(url, timeout=30, trust_env=False).raise_for_status()
        except httpx.HTTPError:
            time.sleep(0.2)
        else:
            return
    raise AssertionError(f"{url} does not answer: {log.read_text(errors='replace')[-2000:]}")
