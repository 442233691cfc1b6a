"""A started service that cannot answer for a while says so in its health, and takes calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.wire.channel import connect
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.server import MeshServer
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.lifecycle import Idle
from tests.support.waiting import until
from tests.unit.kit.conftest import SERVICE, Echo, EchoSettings, registration

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_follows_readiness_and_calls_are_let_in(tmp_path: Path) -> None:
    readiness = Readiness()
    settings = EchoSettings(home=tmp_path, grace_s=5)
    async with MeshServer(
        "echo", settings, Idle(registration(), readiness=readiness), telemetry=Telemetry.disabled()
    ) as server:
        channel = connect(server.address, service=SERVICE)
        stub = health_pb2_grpc.HealthStub(channel)

        async def shows(status: int) -> bool:
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            return bool((await stub.Check(request, timeout=20)).status == status)

        assert await shows(SERVING)
        for ready, status in ((False, NOT_SERVING), (True, SERVING), (False, NOT_SERVING)):
            readiness.ready = ready
            await until(lambda status=status: shows(status))  # type: ignore[misc]
            assert await Echo(channel)("unary") == ["a"]
        await channel.close()


async def test_changes_begin_with_the_value_now_and_leave_out_what_nobody_saw() -> None:
    readiness = Readiness()
    changes = readiness.changes()
    assert await anext(changes) is True
    readiness.ready = False
    readiness.ready = True
    following = asyncio.ensure_future(anext(changes))
    await asyncio.sleep(0)
    readiness.ready = False
    assert await following is False
    await changes.aclose()
