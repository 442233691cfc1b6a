"""What a model's health monitor does about what it sees; a real server that dies is in ``tests/faults``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import pytest

from evenmesh.wire.errors import DeadlineExceeded, Internal, MeshError, NotFound, Overloaded, restored
from evenmesh_generator.backends.triton.client import LoadError, VersionState
from evenmesh_generator.backends.triton.endpoint import ModelEndpoint
from evenmesh_generator.backends.triton.errors import ModelProcessGone, ModelUnavailable, ServerGone
from evenmesh_generator.backends.triton.health_monitor import HealthMonitor, HealthSettings
from evenmesh_generator.ports import Cancellation
from evenmesh_kit.compute.tenant_places import TenantPlaces

Outcome = MeshError | None
LATE = DeadlineExceeded("late")
DEAD = ModelProcessGone("m")
OUT_OF_MEMORY = restored(grpc.StatusCode.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY", "full")


def places(count: int) -> TenantPlaces:
    return TenantPlaces(count, share=1.0, where="the Triton server")


class ScriptedServer:
    """A server that answers what a test wants; what it is asked to do is noted."""

    def __init__(self) -> None:
        self.live: Outcome = None
        self.probe_: Outcome = None
        self.state = "READY"
        self.refusal: LoadError | None = None
        self.done: list[str] = []

    async def check_live(self, *, timeout_s: float) -> None:
        assert timeout_s > 0
        if self.live is not None:
            raise self.live

    async def probe(self, timeout_s: float) -> None:
        assert timeout_s > 0
        self.done.append("probe")
        if self.probe_ is not None:
            raise self.probe_

    async def repository(self, *, timeout_s: float) -> Mapping[str, Sequence[VersionState]]:
        return {"m": [VersionState("1", self.state)]}

    async def load(self, model: str, *, timeout_s: float) -> None:
        self.done.append(f"load {model}")
        if self.refusal is not None:
            raise self.refusal
        self.state, self.probe_ = "READY", None

    async def unload(self, model: str, *, timeout_s: float) -> None:
        self.done.append(f"unload {model}")
        self.state = "UNAVAILABLE"


class Scene:
    """A health monitor, the model it watches, and a scripted server."""

    def __init__(self, health: HealthSettings) -> None:
        self.server: Any = ScriptedServer()
        self.endpoint = ModelEndpoint("m", places(8))
        self.monitor = HealthMonitor(self.server, self.endpoint, self.server.probe, health)
        self.under_way: asyncio.Task[str] | None = None

    async def begin(self) -> None:
        """A request that is never answered."""

        async def work(_: float) -> str:
            await asyncio.Event().wait()
            return "never"

        self.under_way = asyncio.create_task(self.endpoint.run(work, Cancellation()))
        await asyncio.sleep(0)

    async def ended(self) -> bool:
        """Whether that request has been ended."""
        assert self.under_way is not None
        done, _ = await asyncio.wait((self.under_way,), timeout=0.02)
        return bool(done) and self.under_way.exception() is not None

    def why(self) -> str:
        """Why requests are refused."""
        assert self.endpoint._unavailable is not None
        return self.endpoint._unavailable.message


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Scene]:
    """Makes a scene; what is done at random moments is done at once."""
    monkeypatch.setattr("evenmesh_generator.backends.triton.health_monitor._ASIDE_S", 0.0)
    return lambda **health: Scene(HealthSettings(**health))


Make = Callable[..., Scene]


async def test_a_model_that_answers_is_left_alone(scene: Make) -> None:
    it = scene()
    await it.monitor.check()
    assert it.endpoint.up
    assert it.server.done == ["probe"]


@pytest.mark.parametrize("busy", [Overloaded("full", 1.0), OUT_OF_MEMORY])
async def test_a_model_that_has_no_room_is_alive(scene: Make, busy: MeshError) -> None:
    it = scene()
    it.server.probe_ = busy
    await it.monitor.check()
    assert it.endpoint.up


async def test_one_lost_look_is_nothing_and_two_are_a_server_that_is_gone(scene: Make) -> None:
    it = scene()
    await it.begin()
    it.server.live = LATE
    await it.monitor.check()
    assert it.endpoint.up
    await it.monitor.check()
    assert it.why() == "the Triton server does not answer"
    assert await it.ended()
    it.server.live = None
    await it.monitor.check()
    assert it.endpoint.up


async def test_a_server_that_cannot_be_reached_is_gone_at_once(scene: Make) -> None:
    it = scene()
    it.server.live = ServerGone("the Triton server cannot be reached")
    await it.monitor.check()
    assert it.why() == "the Triton server cannot be reached"
    assert it.server.done == []


async def test_a_dead_process_is_replaced_by_unloading_and_loading(scene: Make) -> None:
    it = scene()
    await it.begin()
    it.server.probe_ = DEAD
    await it.monitor.check()
    assert not it.endpoint.up
    assert await it.ended()
    assert it.server.done == ["probe", "probe", "unload m", "load m"]
    await it.monitor.check()
    assert it.endpoint.up


async def test_who_comes_second_finds_the_model_replaced(scene: Make) -> None:
    it = scene()

    async def dead_once(_: float) -> None:
        it.server.done.append("probe")
        if len(it.server.done) == 1:
            raise DEAD

    it.monitor._probe = dead_once
    await it.monitor.check()
    assert it.endpoint.up
    assert it.server.done == ["probe", "probe"]


@pytest.mark.parametrize("error", [ModelUnavailable("no versions"), NotFound("model", "none")])
async def test_a_model_that_is_not_loaded_is_loaded(scene: Make, error: MeshError) -> None:
    it = scene()
    it.server.probe_, it.server.state = error, "UNAVAILABLE"
    await it.monitor.check()
    assert it.why() == "m is not loaded at the Triton server"
    assert it.server.done == ["probe", "load m"]
    await it.monitor.check()
    assert it.endpoint.up


async def test_a_model_that_is_being_loaded_is_waited_for(scene: Make) -> None:
    it = scene()
    it.server.probe_, it.server.state = ModelUnavailable("no versions"), "LOADING"
    await it.monitor.check()
    assert it.server.done == ["probe"]


async def test_what_cannot_be_loaded_is_tried_again_later(scene: Make) -> None:
    it = scene()
    it.server.probe_, it.server.state = ModelUnavailable("no versions"), "UNAVAILABLE"
    it.server.refusal = LoadError("RuntimeError at /secret/path")
    await it.monitor.check()
    assert it.why() == "m cannot be loaded at the Triton server; its log says why"
    await it.monitor.check()
    assert it.server.done.count("load m") == 1, "not at every look"
    it.monitor._load_at = 0.0  # later
    it.server.refusal = None
    await it.monitor.check()
    await it.monitor.check()
    assert it.endpoint.up


async def test_a_busy_model_is_not_taken_for_a_silent_one(scene: Make) -> None:
    it = scene(probe_s=60.0)
    it.server.probe_ = LATE
    it.endpoint.record_response()
    await it.monitor.check()
    assert it.endpoint.up


async def test_a_silent_model_is_away_and_those_who_wait_go_on_waiting(scene: Make) -> None:
    it = scene()
    await it.begin()
    it.server.probe_ = LATE
    await it.monitor.check()
    assert it.why() == "m does not answer at the Triton server"
    assert not await it.ended()
    assert "unload m" not in it.server.done
    assert it.under_way is not None
    it.under_way.cancel()


@pytest.mark.parametrize("error", [LATE, Internal("1")])
async def test_a_stuck_or_sick_model_is_reloaded(scene: Make, error: MeshError) -> None:
    it = scene(stuck_s=1e-9)
    it.server.probe_ = error
    await it.monitor.check()
    assert it.server.done == ["probe", "probe", "unload m", "load m"]
    await it.monitor.check()
    assert it.endpoint.up


async def test_trouble_has_it_look_at_once(scene: Make) -> None:
    it = scene(interval_s=3600.0)
    running = asyncio.create_task(it.monitor.run())
    async with asyncio.timeout(20):
        while it.server.done != ["probe"]:
            await asyncio.sleep(0.001)
        it.endpoint.on_failure()
        while it.server.done != ["probe", "probe"]:
            await asyncio.sleep(0.001)
    running.cancel()
