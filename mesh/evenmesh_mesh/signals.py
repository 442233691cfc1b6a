"""Handle signals that ask to stop."""

import asyncio
import signal
from collections.abc import Callable
from typing import Any, Final, Self

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Ends a block of the running task on SIGINT, SIGTERM or SIGHUP, without an error.

    The first signal cancels the block, whose cleanup takes its time. The second signal calls ``hurry``.

    Attributes:
        received: the signal that ended the block; None if there was none.
    """

    def __init__(self, hurry: Callable[[], None]) -> None:
        self._hurry = hurry
        self._task: asyncio.Task[Any] | None = None
        self.received: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._receive, number)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> bool:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        if self.received is not None and self._task is not None:
            self._task.uncancel()
            return exc_type is asyncio.CancelledError
        return False

    def _receive(self, number: signal.Signals) -> None:
        if self.received is None and self._task is not None:
            self.received = number
            self._task.cancel()
        else:
            self._hurry()
