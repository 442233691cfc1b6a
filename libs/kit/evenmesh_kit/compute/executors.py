"""A bounded thread pool for work that would block the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ComputePool:
    """A fixed number of threads for compute.

    Args:
        threads: number of threads, [1, inf).
        name: prefix of the threads' names.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in a thread, with the caller's context variables.

        Cancelling the caller drops work that has not begun; work that has begun runs to its end unused.
        """
        context = contextvars.copy_context()
        call = functools.partial(context.run, fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def close(self) -> None:
        """Drop work that has not begun and wait for work that has."""
        self._executor.shutdown(wait=True, cancel_futures=True)
