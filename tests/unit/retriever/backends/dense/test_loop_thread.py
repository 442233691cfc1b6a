"""An event loop for callers in other threads."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest

from evenmesh.wire.errors import Unavailable
from evenmesh_retriever.backends.dense.loop_thread import LoopThread, result

WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


async def nothing() -> None:
    """Release nothing."""


def test_work_runs_in_one_other_thread_with_the_context_of_its_caller() -> None:
    thread = LoopThread("encoder")

    async def seen() -> tuple[str, str]:
        return threading.current_thread().name, WHO.get()

    token = WHO.set("acme")
    try:
        assert thread.run(seen()) == ("encoder", "acme")
    finally:
        WHO.reset(token)
        thread.close(nothing)


def test_an_error_reaches_the_caller() -> None:
    thread = LoopThread("encoder")

    async def fails() -> None:
        raise ValueError("of the work")

    try:
        with pytest.raises(ValueError, match="of the work"):
            thread.run(fails())
    finally:
        thread.close(nothing)


def test_closing_ends_what_runs_releases_and_refuses_what_comes() -> None:
    thread = LoopThread("encoder")
    begun, ended, released = threading.Event(), threading.Event(), threading.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def release() -> None:
        assert ended.is_set(), "what runs may use it"
        released.set()

    running = thread.submit(forever())
    assert begun.wait(30)
    thread.close(release)
    thread.close(release)
    assert released.is_set()
    with pytest.raises(Unavailable, match="stops"):
        result(running)
    with pytest.raises(Unavailable, match="stops"):
        thread.run(nothing())
    assert "encoder" not in {one.name for one in threading.enumerate()}


def test_a_cancelled_future_cancels_its_work() -> None:
    thread = LoopThread("encoder")
    begun, ended = threading.Event(), threading.Event()

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    try:
        running = thread.submit(forever())
        assert begun.wait(30)
        running.cancel()
        assert ended.wait(30)
    finally:
        thread.close(nothing)
