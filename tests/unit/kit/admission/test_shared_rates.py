"""Rates of tenants hold for all replicas that use one store: a real Redis server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire import errors
from evenmesh_kit.admission.limits import TenantLimits
from evenmesh_kit.admission.metering import Meter
from evenmesh_kit.admission.shared_rates import OUT_OF_TOKENS, RATE_LIMITED, Excess, SharedRates
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.in_memory_telemetry import InMemoryTelemetry
from tests.support.redis_server import RedisServer, running

SLOW = TenantLimits(calls_per_s=0.001, burst=10)
"""Ten calls, and none more while a test lasts."""


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine is no reason to hold the store for away; one that has ended refuses connections."""
    monkeypatch.setattr("evenmesh_kit.admission.shared_rates._ANSWER_S", 60.0)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """A server that runs."""
    with running() as server:
        yield server


@asynccontextmanager
async def replica(
    redis: RedisServer, service: str = "retriever", **options: Any
) -> AsyncIterator[SharedRates]:
    """What one process has of the rates."""
    options = {"required": False, "meter": Telemetry.disabled().meter, **options}
    rates = SharedRates(redis.url, service, **options)
    try:
        yield rates
    finally:
        await rates.close()


async def begin(rates: SharedRates, tenant: str, limits: TenantLimits = SLOW) -> Excess | None:
    """Begin a call that spends tokens."""
    return await rates.begin(tenant, limits, spends_tokens=True)


async def test_two_replicas_admit_as_many_calls_as_one(redis: RedisServer) -> None:
    async with replica(redis) as one, replica(redis) as other:
        begun = await asyncio.gather(*(begin(rates, "calls") for _ in range(20) for rates in (one, other)))
        assert begun.count(None) == 10
        refused = await begin(other, "calls")
        assert refused is not None
        assert refused.reason == RATE_LIMITED
        assert 0 < refused.wait_s <= 1000
        # Other tenants, other services and changed limits have buckets of their own.
        assert await begin(one, "another") is None
        assert await begin(one, "calls", SLOW.model_copy(update={"burst": 3})) is None
        async with replica(redis, "generator") as elsewhere:
            assert await begin(elsewhere, "calls") is None


async def test_a_bucket_fills_again(redis: RedisServer) -> None:
    fast = TenantLimits(calls_per_s=50, burst=1)
    async with replica(redis) as rates, asyncio.timeout(60):
        assert await begin(rates, "fills", fast) is None
        while (excess := await begin(rates, "fills", fast)) is not None:
            assert 0 < excess.wait_s <= 1 / 50
            await asyncio.sleep(excess.wait_s)


async def test_tokens_of_one_replica_count_in_another(redis: RedisServer) -> None:
    limits = TenantLimits(tokens_per_minute=60, calls_per_s=0.001, burst=2)
    async with replica(redis) as one:
        assert await begin(one, "tokens", limits) is None
        one.spend("tokens", limits, 150)  # counted by the time that it is closed
    async with replica(redis) as other:
        refused = await begin(other, "tokens", limits)
        assert refused is not None
        assert refused.reason == OUT_OF_TOKENS
        assert 0 < refused.wait_s <= 150 - 60 + 1
        # What spends none goes on, and the refused call has cost none.
        assert await other.begin("tokens", limits, spends_tokens=False) is None
        refused = await other.begin("tokens", limits, spends_tokens=False)
        assert refused is not None
        assert refused.reason == RATE_LIMITED


async def test_a_call_takes_one_round_trip(redis: RedisServer) -> None:
    from redis.asyncio import Redis

    async with replica(redis) as rates, aclosing(Redis.from_url(redis.url)) as watching:
        await begin(rates, "trips")
        await watching.config_resetstat()
        for _ in range(5):
            await begin(rates, "trips")
        counted = await watching.info("commandstats")
    assert {name: one["calls"] for name, one in counted.items() if "eval" in name or "script" in name} == {
        "cmdstat_evalsha": 5
    }


@pytest.mark.parametrize("required", [False, True])
async def test_while_the_store_is_away(required: bool) -> None:
    now = 0.0
    telemetry = InMemoryTelemetry("echo")
    with running() as server:
        async with replica(server, required=required, meter=telemetry.meter, clock=lambda: now) as rates:
            assert await begin(rates, "away") is None
            server.kill()
            for _ in range(2):
                if required:
                    with pytest.raises(errors.Unavailable) as failed:
                        await begin(rates, "away")
                    assert failed.value.reason == "LIMITS_UNAVAILABLE"
                else:
                    assert await begin(rates, "away") is None
            server.start()
            # It is not asked again before a pause, so that calls do not wait for it one after the other.
            if not required:
                assert await begin(rates, "away", TenantLimits(calls_per_s=0.001, burst=1)) is None
                point: Any
                (point,) = telemetry.metrics()["evenmesh.limits.unshared"].data.data_points
                assert point.value == 3
            now += 2.0
            begun = [await begin(rates, "away") for _ in range(11)]
            assert begun.count(None) == 10


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("steps", range(0, 30, 2))
async def test_a_cancelled_call_does_not_begin(redis: RedisServer, steps: int, required: bool) -> None:
    async with replica(redis, required=required) as rates:

        async def call() -> None:
            while True:
                await begin(rates, "cancelled", TenantLimits(calls_per_s=1e6))
                await asyncio.sleep(0.001)

        calling = asyncio.create_task(call())
        for _ in range(steps):  # also while it connects, where the package loses cancellations
            await asyncio.sleep(0)
        calling.cancel()
        async with asyncio.timeout(60):
            await asyncio.gather(calling, return_exceptions=True)
        assert calling.cancelled()


async def test_a_call_that_the_store_refuses_costs_nothing_here(redis: RedisServer) -> None:
    limits = TenantLimits(calls_per_s=0.001, burst=2)
    async with replica(redis) as rates:
        for _ in range(2):
            await begin(rates, "refund", limits)
        meter = Meter("refund", limits, clock=lambda: 0.0, rates=rates)
        for _ in range(3):  # of two here
            with pytest.raises(errors.MeshError) as refused:
                await meter.begin(spends_tokens=False)
            assert refused.value.reason == RATE_LIMITED
        assert meter.idle


@pytest.mark.parametrize("shared", [True, False])
async def test_two_servers_hold_a_tenant_to_one_rate(
    redis: RedisServer, serve: Any, call: Any, tmp_path: Path, shared: bool
) -> None:
    (tmp_path / "limits.toml").write_text("[default]\ncalls_per_s = 0.001\nburst = 4\n")
    settings: dict[str, Any] = {"EVENMESH_LIMITS": tmp_path / "limits.toml"}
    if shared:
        settings["EVENMESH_LIMITS_STORE"] = redis.url
    admitted = 0
    for _ in range(2):
        unary = call(await serve(settings=settings)).method("unary")
        for _ in range(6):
            code = await unary(ItemError(), metadata=[("evenmesh-tenant", "acme")], timeout=20).code()
            assert code in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)
            admitted += code is grpc.StatusCode.OK
    assert admitted == (4 if shared else 8)


@pytest.mark.parametrize(
    ("url", "limits", "message"),
    [
        ("redis://:hunter2@here/0", False, "set EVENMESH_LIMITS too"),
        ("https://:hunter2@here/0", True, "EVENMESH_LIMITS_STORE: must be a URL"),
    ],
)
async def test_a_store_that_cannot_be_used_stops_the_start(
    serve: Any, tmp_path: Path, url: str, limits: bool, message: str
) -> None:
    (tmp_path / "limits.toml").write_text("")
    settings = {"EVENMESH_LIMITS_STORE": url} | (
        {"EVENMESH_LIMITS": tmp_path / "limits.toml"} if limits else {}
    )
    with pytest.raises(ServerStartError, match=message) as failed:
        await serve(settings=settings)
    assert "hunter2" not in str(failed.value)
