"""Compute parts of a batch at the same time, each by one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from types import TracebackType
from typing import TypeVar

import torch

from evenmesh_kit.compute.thread_names import name_thread

Part = TypeVar("Part")
Result = TypeVar("Result")


class SideBySide(AbstractContextManager["SideBySide"]):
    """Threads that compute beside the one that asks them; left as a context, they end.

    An operation of PyTorch on a few dozen rows is too short for its threads: with two it took 0.50 to 1.0
    of the time, by operation; two threads took 0.48 for attention, with half of the rows each (2026-11-30,
    two cores with AMX).

    Args:
        most: parts that are computed at the same time, the asking thread's among them, [1, inf).
        name: prefix of the threads' names.
        threads: threads of an operation of PyTorch in each, [1, inf).
    """

    def __init__(self, most: int, name: str, *, threads: int) -> None:
        self._others = (
            ThreadPoolExecutor(most - 1, name, initializer=partial(_begin, threads)) if most > 1 else None
        )

    def map(self, call: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        """Return what ``call``, which must not raise, returns for each part."""
        if self._others is None or len(parts) < 2:
            return [call(one) for one in parts]
        first, *others = parts
        pending = [self._others.submit(_inferring, call, one) for one in others]
        return [call(first), *(one.result() for one in pending)]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the threads."""
        if self._others is not None:
            self._others.shutdown()


def _begin(threads: int) -> None:
    name_thread()
    torch.set_num_threads(threads)


def _inferring(call: Callable[[Part], Result], part: Part) -> Result:
    # Whether PyTorch records gradients is a thread's own.
    with torch.inference_mode():
        return call(part)
