"""End a computation between two of its steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from evenmesh_kit.compute.tenant_pool import TenantPool

T = TypeVar("T")
Check: TypeAlias = Callable[[], None]
"""Called before each step of a computation; what it raises ends it."""


def unchecked() -> None:
    """Let a computation continue."""


class AbandonedError(Exception):
    """Raised in a computation whose caller is gone."""


class Steps:
    """The steps of one computation in a thread, and whether somebody still waits for it."""

    def __init__(self) -> None:
        self._gone = threading.Event()

    def abandon(self) -> None:
        """End the computation before its next step."""
        self._gone.set()

    def check(self) -> None:
        """Go on, unless the computation was abandoned.

        Raises:
            AbandonedError: it was.
        """
        if self._gone.is_set():
            raise AbandonedError


async def run(pool: TenantPool, compute: Callable[[Check], T]) -> T:
    """Run a computation in a thread; cancelling the caller ends it before its next step."""
    steps = Steps()
    try:
        return await pool.run(compute, steps.check)
    except asyncio.CancelledError:
        steps.abandon()
        raise
