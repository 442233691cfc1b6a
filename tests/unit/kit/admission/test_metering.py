"""Tenants are held to their limits, each to its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh.wire.credentials import Credential
from evenmesh.wire.security import ChannelSecurity
from evenmesh_kit.admission import metering
from evenmesh_kit.admission.limits import Limits, TenantLimits, built_in
from evenmesh_kit.admission.metering import Meter, Metering
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.security import keys
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.clock import Clock
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.unit.kit.conftest import EchoSettings


async def refused(meter: Meter, *, spends_tokens: bool = False) -> tuple[str, float | None]:
    """How it refuses a call."""
    with pytest.raises(errors.MeshError) as raised:
        async with meter.call(spends_tokens=spends_tokens):
            pytest.fail("was let in")
    assert raised.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    return raised.value.reason, raised.value.retry_after_s


async def test_calls_a_second() -> None:
    clock = Clock()
    meter = Meter("acme", TenantLimits(calls_per_s=2, burst=2), clock=clock)
    for _ in range(2):
        async with meter.call(spends_tokens=False):
            pass
    assert await refused(meter) == ("RATE_LIMITED", 1 / 2)
    clock.now += 0.5
    async with meter.call(spends_tokens=False):
        pass
    meter.limits = TenantLimits()
    async with meter.call(spends_tokens=False):
        pass


async def test_calls_at_a_time() -> None:
    meter = Meter("acme", TenantLimits(concurrent=2))
    async with meter.call(spends_tokens=False):
        async with meter.call(spends_tokens=False):
            assert (await refused(meter))[0] == "TOO_MANY_CALLS"
        async with meter.call(spends_tokens=False):
            meter.limits = TenantLimits(concurrent=1)  # what runs stays counted
    async with meter.call(spends_tokens=False):
        assert (await refused(meter))[0] == "TOO_MANY_CALLS"


async def test_streams_at_a_time() -> None:
    meter = Meter("acme", TenantLimits(streams=1))
    async with meter.call(spends_tokens=False, streams=True):
        with pytest.raises(errors.MeshError, match="1 streams open, of 1"):
            async with meter.call(spends_tokens=False, streams=True):
                pytest.fail("was let in")
        async with meter.call(spends_tokens=False):  # other calls go on
            pass
    async with meter.call(spends_tokens=False, streams=True):
        pass


def test_built_in_limits_hold_where_a_file_states_none() -> None:
    stated, unstated = TenantLimits(concurrent=3, calls_per_s=5), built_in(8 * 2**20)
    assert stated.or_else(unstated) == TenantLimits(concurrent=3, calls_per_s=5, streams=32)
    assert TenantLimits().or_else(unstated) == unstated
    # A call rate is a matter of the operator, and a tenant of many users has hundreds of calls.
    assert (unstated.calls_per_s, unstated.tokens_per_minute) == (None, None)


@pytest.mark.parametrize(
    ("largest", "streams"), [(8 * 2**20, 32), (16 * 2**20, 16), (2**31 - 1, 1), (1, 256)]
)
def test_streams_that_wait_for_the_rest_of_a_request_are_bounded(largest: int, streams: int) -> None:
    assert built_in(largest).streams == streams  # 256 MiB of requests


@pytest.mark.parametrize("known", [True, False])
async def test_limits_are_on_without_a_file_where_callers_are_known(
    serve: Any, call: Any, tmp_path: Path, tenant_keys: dict[str, str], known: bool
) -> None:
    seen: list[TenantLimits] = []

    async def unary(request: ItemError, context: Any) -> ItemError:
        seen.append(metering.current().limits)
        return request

    server_limit = EchoSettings().max_message_bytes  # the echo service's methods state none
    server = await serve(unary=unary, settings={"EVENMESH_API_KEYS": tmp_path / "keys.toml"} if known else {})
    await call(server, **({"security": shown(tenant_keys["flood"])} if known else {}))("unary")
    assert seen == [built_in(server_limit) if known else TenantLimits()]


async def test_tokens_are_paid_for_afterwards() -> None:
    clock = Clock()
    meter = Meter("acme", TenantLimits(tokens_per_minute=60, calls_per_s=1, burst=3), clock=clock)
    async with meter.call(spends_tokens=True):
        meter.spend(150)
    # 60 - 150 tokens, one a second.
    assert await refused(meter, spends_tokens=True) == ("OUT_OF_TOKENS", 150 - 60 + 1)
    async with meter.call(
        spends_tokens=False
    ):  # what writes nothing goes on, and the refused call has cost none
        pass
    clock.now += 91
    async with meter.call(spends_tokens=True):
        pass


def shown(key: str) -> ChannelSecurity:
    """What a caller with that key shows."""
    return ChannelSecurity(certificates=None, credential=Credential(key))


@pytest.fixture
def tenant_keys(tmp_path: Path) -> dict[str, str]:
    """Keys of two tenants and of a service, in a file."""
    found = {}
    for name, tenant, role in (
        ("flood", "flood", "admin"),
        ("polite", "polite", "admin"),
        ("mesh", "default", "service"),
    ):
        key, digest = keys.new_key()
        entry = keys.KeyEntry.read({"name": name, "sha256": digest, "tenant": tenant, "roles": [role]})
        keys.add_entry(tmp_path / "keys.toml", entry)
        found[name] = key
    return found


async def test_one_tenants_limit_is_not_anothers(
    serve: Any, call: Any, tmp_path: Path, tenant_keys: dict[str, str]
) -> None:
    (tmp_path / "limits.toml").write_text("[default]\ncalls_per_s = 0.001\nburst = 2\n")
    telemetry = InMemoryTelemetry("echo")
    server = await serve(
        telemetry=telemetry,
        settings={"EVENMESH_API_KEYS": tmp_path / "keys.toml", "EVENMESH_LIMITS": tmp_path / "limits.toml"},
    )
    flood, polite, mesh = (
        call(server, security=shown(tenant_keys[name])) for name in ("flood", "polite", "mesh")
    )
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
    (point,) = telemetry.metrics()["evenmesh.limits.refused"].data.data_points
    assert (point.value, point.attributes) == (3, {"reason": "RATE_LIMITED"})


async def test_where_nobody_is_asked_a_tenant_that_is_named_is_held_to_its_limits(
    serve: Any, call: Any, tmp_path: Path
) -> None:
    (tmp_path / "limits.toml").write_text("[default]\ncalls_per_s = 0.001\nburst = 1\n")
    echo = call(await serve(settings={"EVENMESH_LIMITS": tmp_path / "limits.toml"}))
    for tenant in ("acme", "other"):  # as a gateway in front says
        unary, named = echo.method("unary"), [("evenmesh-tenant", tenant)]
        await unary(ItemError(), metadata=named, timeout=20)
        with pytest.raises(grpc.RpcError) as failed:
            await unary(ItemError(), metadata=named, timeout=20)
        assert errors.from_rpc_error(failed.value).reason == "RATE_LIMITED"


async def test_a_call_knows_its_meter(
    serve: Any, call: Any, tmp_path: Path, tenant_keys: dict[str, str]
) -> None:
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
        settings={"EVENMESH_API_KEYS": tmp_path / "keys.toml", "EVENMESH_LIMITS": tmp_path / "limits.toml"},
    )
    flood, polite = (call(server, security=shown(tenant_keys[name])) for name in ("flood", "polite"))
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
    with pytest.raises(ServerStartError, match=r"EVENMESH_LIMITS: .*default\.burst"):
        await serve(settings={"EVENMESH_LIMITS": tmp_path / "limits.toml"})


async def test_meters_of_idle_tenants_are_forgotten() -> None:
    clock = Clock()
    limits = Limits(TenantLimits(calls_per_s=1, burst=1))
    found = Metering(lambda: limits, Telemetry.disabled().meter, clock=clock)
    found.of("busy").users += 1
    await found.of("in debt").begin(spends_tokens=False)
    for number in range(5000):
        found.of(f"tenant {number}")
    assert len(found._meters) <= 2048
    with pytest.raises(errors.MeshError):
        await found.of("in debt").begin(spends_tokens=False)
    assert found.of("busy").users == 1
