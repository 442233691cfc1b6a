"""Compute in bounded threads."""

from __future__ import annotations

import _thread
import asyncio
import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenmesh.wire import deadline
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.thread_names import threads_begin_as


@pytest.fixture
def pool() -> Iterator[ComputePool]:
    pool = ComputePool(1, "test-compute")
    yield pool
    pool.close()


async def test_it_runs_elsewhere_and_returns_the_result(pool: ComputePool) -> None:
    name = await pool.run(lambda: threading.current_thread().name)
    assert name.startswith("test-compute")
    assert await pool.run(divmod, 7, 2) == (3, 1)


async def test_an_exception_comes_back(pool: ComputePool) -> None:
    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)


async def test_context_variables_go_along(pool: ComputePool) -> None:
    mine = deadline.Deadline.after(5)
    deadline.enter(mine)
    assert await pool.run(deadline.current) is mine


async def test_a_cancelled_caller_leaves_the_running_thread_alone(pool: ComputePool) -> None:
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        assert go.wait(20)
        ended.set()

    task = asyncio.create_task(pool.run(work))
    await asyncio.to_thread(began.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert await pool.run(ended.is_set)


async def test_work_that_has_not_begun_is_dropped_with_its_caller(pool: ComputePool) -> None:
    began, go, ran = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert go.wait(20)

    holding = asyncio.create_task(pool.run(hold))
    await asyncio.to_thread(began.wait, 20)
    waiting = asyncio.create_task(pool.run(ran.set))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    go.set()
    await holding
    await pool.run(int)
    assert not ran.is_set()


def _system_name() -> str:
    return Path("/proc/thread-self/comm").read_text(encoding="utf-8").rstrip("\n")


@pytest.mark.skipif(sys.platform != "linux", reason="the system's names of threads are Linux's")
async def test_the_system_names_threads_as_python_or_as_the_context_does(pool: ComputePool) -> None:
    assert await pool.run(_system_name) == "test-compute_0"
    before = _system_name()
    names: queue.Queue[str] = queue.Queue()
    with threads_begin_as("openvino"):
        # As a library begins one: from 3.14 on, a thread of `threading` has its own name.
        _thread.start_new_thread(lambda: names.put(_system_name()), ())
        assert await asyncio.to_thread(names.get) == "openvino"
    assert _system_name() == before
