"""An event loop in a thread of its own, for callers in other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from evenmesh.wire.errors import Unavailable

T = TypeVar("T")


class LoopThread:
    """Runs coroutines of callers that wait in their own threads; close it.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin some work with the caller's context variables; cancelling the future cancels it.

        Raises:
            Unavailable: the thread has ended.
        """
        with self._lock:
            if self._closed:
                work.close()
                raise _stopping()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of some work.

        Raises:
            Unavailable: the thread ends.
        """
        return result(self.submit(work))

    def close(self, release: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Cancel what runs, wait for its end, release what it used, and end the thread; once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_end_others(release), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def result(future: Future[T]) -> T:
    """Wait for the result of a future of :meth:`LoopThread.submit`; see :meth:`LoopThread.run`."""
    try:
        return future.result()
    except CancelledError:
        raise _stopping() from None
    except BaseException:
        future.cancel()
        raise


def _stopping() -> Unavailable:
    return Unavailable("STOPPING", "this service stops")


async def _end_others(release: Callable[[], Coroutine[Any, Any, None]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await release()
    await asyncio.get_running_loop().shutdown_default_executor()
