"""A bounded thread pool for work that would block the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from evenmesh_kit.compute.thread_names import name_thread

P = ParamSpec("P")
T = TypeVar("T")


class ComputePool:
    """A fixed number of threads for compute.

    Args:
        threads: number of threads, [1, inf).
        name: prefix of the threads' names.
        nice: how far its threads yield the processors to others of this process, as ``nice`` counts, [0, 19].
            Only Linux counts it by thread; elsewhere it does nothing.
    """

    def __init__(self, threads: int, name: str, nice: int = 0) -> None:
        self.executor = ThreadPoolExecutor(threads, name, initializer=functools.partial(_begin, nice))

    async def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``fn`` in a thread, with the caller's context variables.

        Cancelling the caller drops work that has not begun; work that has begun runs to its end unused.
        """
        context = contextvars.copy_context()
        call = functools.partial(context.run, fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self.executor, call)

    def close(self) -> None:
        """Drop work that has not begun and wait for work that has."""
        self.executor.shutdown(wait=True, cancel_futures=True)


def _begin(nice: int) -> None:
    name_thread()
    if nice and sys.platform == "linux":
        with contextlib.suppress(OSError):  # a sandbox may forbid it: the threads work, they do not yield
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + nice)
