"""Requests at a model of a Triton server: places, deadlines, callers that leave, models that go away."""

from __future__ import annotations

import asyncio
import threading

import pytest

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, Unavailable
from evenmesh_generator.backends.triton.endpoint import ModelEndpoint
from evenmesh_generator.backends.triton.errors import ModelProcessGone, ModelUnavailable
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_kit.compute.tenant_places import TenantPlaces

AWAY = ModelUnavailable("m is not loaded")


def places(count: int) -> TenantPlaces:
    return TenantPlaces(count, share=1.0, where="the Triton server")


async def _for_ever(_: float) -> str:
    await asyncio.Event().wait()
    return "never"


async def _at_once(timeout_s: float) -> float:
    return timeout_s


async def _begin(endpoint: ModelEndpoint, cancel: Cancellation, count: int = 1) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(endpoint.run(_for_ever, cancel)) for _ in range(count)]
    await asyncio.sleep(0)
    assert endpoint.in_flight == count
    return tasks


async def test_what_is_left_of_the_deadline_travels() -> None:
    endpoint = ModelEndpoint("m", places(1))
    left = await asyncio.create_task(endpoint.run(_at_once, Cancellation(Deadline.after(10))))
    assert 9 < left < 10
    assert endpoint.in_flight == 0


async def test_a_request_waits_for_a_place_within_its_deadline() -> None:
    shared = places(1)
    endpoint, other = ModelEndpoint("m", shared), ModelEndpoint("n", shared)
    (first,) = await _begin(endpoint, Cancellation())
    with pytest.raises(DeadlineExceeded, match="no place"):
        await asyncio.create_task(other.run(_at_once, Cancellation(Deadline.after(0.1))))
    waiting = asyncio.create_task(other.run(_at_once, Cancellation()))
    first.cancel()
    assert await waiting > 0
    assert not shared.held


async def test_a_model_that_is_away_refuses_at_once_and_says_why() -> None:
    endpoint = ModelEndpoint("m", places(1))
    changes: list[bool] = []
    endpoint.on_change = lambda: changes.append(endpoint.up)
    endpoint.mark_unavailable(AWAY, fail_running=False)
    endpoint.mark_unavailable(AWAY, fail_running=False)
    raised = []
    for _ in range(2):
        with pytest.raises(Unavailable, match="m is not loaded") as caught:
            await asyncio.create_task(endpoint.run(_at_once, Cancellation()))
        raised.append(caught.value)
    assert raised[0] is not raised[1], "an error raised again keeps the frames of those before"
    assert raised[0].retry_after_s == AWAY.retry_after_s
    endpoint.mark_available()
    endpoint.mark_available()
    assert await asyncio.create_task(endpoint.run(_at_once, Cancellation())) > 0
    assert changes == [False, True]


@pytest.mark.parametrize("fail_running", [False, True])
async def test_what_is_under_way_ends_only_if_the_model_is_gone_for_good(fail_running: bool) -> None:
    endpoint = ModelEndpoint("m", places(1))
    tasks = await _begin(endpoint, Cancellation(), 3)  # one has the place, two wait for it
    endpoint.mark_unavailable(AWAY, fail_running=fail_running)
    done, _ = await asyncio.wait(tasks, timeout=20 if fail_running else 0.05)
    assert len(done) == (3 if fail_running else 0)
    assert all(isinstance(task.exception(), Unavailable) for task in done)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert endpoint.in_flight == 0


async def test_one_that_meets_a_dead_process_ends_the_others() -> None:
    endpoint = ModelEndpoint("m", places(8))
    troubles: list[str] = []
    endpoint.on_failure = lambda: troubles.append("dead")
    others = await _begin(endpoint, Cancellation(), 3)

    async def meets_it(_: float) -> str:
        raise ModelProcessGone("m")

    with pytest.raises(ModelProcessGone):
        await asyncio.create_task(endpoint.run(meets_it, Cancellation()))
    assert not endpoint.up
    for other in others:
        with pytest.raises(Unavailable, match="the process of m"):
            await other
    assert troubles == ["dead"]


async def test_a_caller_that_goes_ends_its_request_from_any_thread() -> None:
    endpoint = ModelEndpoint("m", places(1))
    cancel = Cancellation()
    (task,) = await _begin(endpoint, cancel)
    threading.Thread(target=cancel.cancel).start()
    with pytest.raises(Cancelled):
        await task
    with pytest.raises(Cancelled):
        await asyncio.create_task(endpoint.run(_at_once, cancel))
    assert endpoint.up


async def test_a_cancelled_task_stays_cancelled() -> None:
    shared = places(1)
    endpoint = ModelEndpoint("m", shared)
    (task,) = await _begin(endpoint, Cancellation())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (endpoint.in_flight, shared.held) == (0, 0)
