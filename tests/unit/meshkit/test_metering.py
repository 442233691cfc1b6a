"""Tenants are held to their limits, each to its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from meshkit import errors, metering
from meshkit.limits import TenantLimits
from meshkit.metering import WRITING, Meter
from meshkit.security import keys
from meshkit.security.channel_security import ChannelSecurity
from meshkit.security.outgoing import Credential
from meshkit.server import ServerStartError
from meshkit.telemetry import Telemetry
from ragmesh.common.v1.common_pb2 import ItemError


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(meter: Meter, *, writes: bool = False) -> tuple[str, float | None]:
    """How it refuses a call."""
    with pytest.raises(errors.MeshError) as raised, meter.call(writes=writes):
        pytest.fail("was let in")
    assert raised.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    return raised.value.reason, raised.value.retry_after_s


def test_calls_a_second() -> None:
    clock = Clock()
    meter = Meter("acme", TenantLimits(calls_per_s=2, burst=2), clock=clock)
    for _ in range(2):
        with meter.call(writes=False):
            pass
    assert refused(meter) == ("RATE_LIMITED", 1 / 2)
    clock.now += 0.5
    with meter.call(writes=False):
        pass
    meter.limits = TenantLimits()
    with meter.call(writes=False):
        pass


def test_calls_at_a_time() -> None:
    meter = Meter("acme", TenantLimits(concurrent=2))
    with meter.call(writes=False):
        with meter.call(writes=False):
            assert refused(meter)[0] == "TOO_MANY_CALLS"
        with meter.call(writes=False):
            meter.limits = TenantLimits(concurrent=1)  # what runs stays counted
    with meter.call(writes=False):
        assert refused(meter)[0] == "TOO_MANY_CALLS"


def test_tokens_are_paid_for_afterwards() -> None:
    clock = Clock()
    meter = Meter("acme", TenantLimits(tokens_per_minute=60, calls_per_s=1, burst=3), clock=clock)
    with meter.call(writes=True):
        meter.spend(150)
    # 60 - 150 tokens, one a second.
    assert refused(meter, writes=True) == ("OUT_OF_TOKENS", 150 - 60 + 1)
    with meter.call(writes=False):  # what writes nothing goes on, and the refused call has cost none
        pass
    clock.now += 91
    with meter.call(writes=True):
        pass


def test_the_methods_that_write_are_there() -> None:
    from ragmesh.generator.v1 import generator_service_pb2 as generator
    from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as orchestrator

    services = [
        orchestrator.DESCRIPTOR.services_by_name["OrchestratorService"],
        generator.DESCRIPTOR.services_by_name["GeneratorService"],
    ]
    known = {f"/{service.full_name}/{name}" for service in services for name in service.methods_by_name}
    assert known - {f"/{services[1].full_name}/ListModels"} == WRITING


def shown(key: str) -> ChannelSecurity:
    """What a caller with that key shows."""
    return ChannelSecurity(certificates=None, credential=Credential(key))


@pytest.fixture
def doors(tmp_path: Path) -> dict[str, str]:
    """Keys of two tenants and of a service, in a file."""
    found = {}
    for name, tenant, role in (
        ("flood", "flood", "admin"),
        ("polite", "polite", "admin"),
        ("mesh", "default", "service"),
    ):
        key, digest = keys.new_key()
        entry = keys.KeyEntry.read({"name": name, "sha256": digest, "tenant": tenant, "roles": [role]})
        keys.added(tmp_path / "keys.toml", entry)
        found[name] = key
    return found


async def test_one_tenants_limit_is_not_anothers(
    serve: Any, call: Any, tmp_path: Path, doors: dict[str, str]
) -> None:
    (tmp_path / "limits.toml").write_text("[default]\ncalls_per_s = 0.001\nburst = 2\n")
    telemetry = Telemetry.in_memory("echo")
    server = await serve(
        telemetry=telemetry,
        settings={"RAGMESH_API_KEYS": tmp_path / "keys.toml", "RAGMESH_LIMITS": tmp_path / "limits.toml"},
    )
    flood, polite, mesh = (call(server, security=shown(doors[name])) for name in ("flood", "polite", "mesh"))
    for _ in range(2):
        assert await flood("unary") == ["a"]
    for kind in ("unary", "server_stream", "bidi"):
        with pytest.raises(grpc.RpcError) as failed:
            await flood(kind)
        error = errors.from_rpc_error(failed.value)
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
        # 1 call at 0.001 a second, less what has passed.
        assert error.retry_after_s is not None
        assert 900 < error.retry_after_s <= 1000
    assert await polite("unary") == ["a"]
    for _ in range(5):  # other services are not refused: that was done where the call came in
        assert await mesh("unary") == ["a"]
    (point,) = telemetry.metrics()["ragmesh.limits.refused"].data.data_points
    assert (point.value, point.attributes) == (3, {"reason": "RATE_LIMITED"})


async def test_where_nobody_is_asked_a_tenant_that_is_named_is_held_to_its_limits(
    serve: Any, call: Any, tmp_path: Path
) -> None:
    (tmp_path / "limits.toml").write_text("[default]\ncalls_per_s = 0.001\nburst = 1\n")
    echo = call(await serve(settings={"RAGMESH_LIMITS": tmp_path / "limits.toml"}))
    for tenant in ("acme", "other"):  # as a gateway in front says
        unary, named = echo.method("unary"), [("ragmesh-tenant", tenant)]
        await unary(ItemError(), metadata=named, timeout=20)
        with pytest.raises(grpc.RpcError) as failed:
            await unary(ItemError(), metadata=named, timeout=20)
        assert errors.from_rpc_error(failed.value).reason == "RATE_LIMITED"


async def test_a_call_knows_its_meter(serve: Any, call: Any, tmp_path: Path, doors: dict[str, str]) -> None:
    (tmp_path / "limits.toml").write_text("[tenants.flood]\nweight = 3\nconcurrent = 1\n")
    seen: list[float] = []
    inside, leave = asyncio.Event(), asyncio.Event()

    async def unary(request: ItemError, context: Any) -> ItemError:
        seen.append(metering.current().weight)
        inside.set()
        await leave.wait()
        return request

    server = await serve(
        unary=unary,
        settings={"RAGMESH_API_KEYS": tmp_path / "keys.toml", "RAGMESH_LIMITS": tmp_path / "limits.toml"},
    )
    flood, polite = (call(server, security=shown(doors[name])) for name in ("flood", "polite"))
    first = asyncio.create_task(flood("unary"))
    await inside.wait()
    with pytest.raises(grpc.RpcError) as failed:
        await flood("unary")
    assert errors.from_rpc_error(failed.value).reason == "TOO_MANY_CALLS"
    leave.set()
    await first
    assert await polite("unary") == ["a"]
    assert await flood("unary") == ["a"]  # the slot was given back
    assert seen == [3.0, 1.0, 3.0]
    assert metering.current().weight == 1.0


async def test_a_file_that_cannot_be_used_stops_the_start(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text("[default]\nburst = 0\n")
    with pytest.raises(ServerStartError, match=r"RAGMESH_LIMITS: .*default\.burst"):
        await serve(settings={"RAGMESH_LIMITS": tmp_path / "limits.toml"})
