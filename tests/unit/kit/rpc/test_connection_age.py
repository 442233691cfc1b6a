"""Connections end after a while, so that callers find servers that are new; calls on them end first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.settings import ServiceSettings, SettingsError, load
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.lifecycle import Idle


def test_the_age_is_what_grpc_gets() -> None:
    settings = ServiceSettings(max_connection_age_s=1.5, max_connection_age_grace_s=7200)
    assert dict(settings.connection_age) == {
        "grpc.max_connection_age_ms": 1500,
        "grpc.max_connection_age_grace_ms": 7_200_000,
    }


def test_by_default_it_is_as_long_as_grpc_can_count() -> None:
    assert all(0 <= 2**31 - 1 - age < 1000 for _, age in ServiceSettings().connection_age)


def test_an_age_of_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENMESH_MAX_CONNECTION_AGE_S", "0")
    with pytest.raises(SettingsError, match=r"EVENMESH_MAX_CONNECTION_AGE_S=0: .*>= 1"):
        load(ServiceSettings)


async def test_a_call_outlives_the_age_of_its_connection_and_the_next_takes_another(
    serve: Any, call: Any
) -> None:
    peers: list[str] = []
    go_on = asyncio.Event()

    async def slow(request: ItemError, context: Any) -> AsyncIterator[ItemError]:
        peers.append(context.peer())
        yield request
        await go_on.wait()
        yield request

    async def quick(request: ItemError, context: Any) -> ItemError:
        peers.append(context.peer())
        return request

    settings = {"max_connection_age_s": 1, "max_connection_age_grace_s": 60}
    server = await serve(settings=settings, server_stream=slow, unary=quick)
    echo = call(server)
    stream = asyncio.create_task(echo("server_stream", "a", timeout=60))
    async with asyncio.timeout(60):
        while not peers:
            await asyncio.sleep(0.01)
        # By and by the connection is old enough, and a new call comes over another.
        while peers[-1] == peers[0]:
            await asyncio.sleep(0.1)
            assert await echo("unary", "b") == ["b"]
    assert not stream.done()
    go_on.set()
    assert await stream == ["a", "a"]


async def test_a_service_that_is_not_ready_is_alive(tmp_path: Path, call: Any) -> None:
    readiness = Readiness()
    readiness.ready = False
    server = MeshServer(
        "empty",
        ServiceSettings(home=tmp_path),
        Idle(readiness=readiness),
        telemetry=Telemetry.disabled(),
    )
    async with server:
        stub = health_pb2_grpc.HealthStub(call(server).channel)
        said = {
            name: (await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)).status
            for name in ("", "live")
        }
    status = health_pb2.HealthCheckResponse
    assert said == {"": status.NOT_SERVING, "live": status.SERVING}
