"""Threads, shares and caches in which one tenant does not reach another."""

import asyncio
import os
import sys
import threading
import time
from contextvars import copy_context

import pytest

from evenmesh.wire.errors import Overloaded
from evenmesh_kit.admission.shares import TenantShares
from evenmesh_kit.compute.tenant_cache import ENTRY_BYTES, TenantCache
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller


def as_tenant(tenant: str) -> None:
    callers.enter(Caller(tenant, tenant, frozenset()))


def started(tenant: str, work) -> asyncio.Task:  # type: ignore[no-untyped-def]
    context = copy_context()
    context.run(as_tenant, tenant)
    return asyncio.get_running_loop().create_task(work, context=context)


class Held:
    """Work that runs until it is let go."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.go.wait(60)
        return callers.current().tenant


async def test_a_tenant_that_holds_its_threads_leaves_one_to_others() -> None:
    pool = TenantPool(2, "test")
    held = [Held() for _ in range(5)]
    tasks = [started("loud", pool.run(one)) for one in held]
    await asyncio.to_thread(held[1].began.wait, 60)
    assert await asyncio.wait_for(started("quiet", pool.run(lambda: callers.current().tenant)), 60) == "quiet"
    assert not held[2].began.is_set()
    for one in held:
        one.go.set()
    assert await asyncio.gather(*tasks) == ["loud"] * 5
    pool.close()


def burn(seconds: float) -> int:
    """Use processor time; return how far the thread yields the processors."""
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass
    return os.getpriority(os.PRIO_PROCESS, 0) - os.getpriority(os.PRIO_PROCESS, os.getpid())


YIELDS = min(10, 19 - os.getpriority(os.PRIO_PROCESS, 0))


@pytest.mark.skipif(
    sys.platform != "linux" or not YIELDS,
    reason="needs Linux, and a process whose niceness is below 19",
)
async def test_who_has_had_more_time_yields_the_processors_while_others_ask() -> None:
    pool = TenantPool(1, "test")
    assert [await started("loud", pool.run(burn, 0.7)) for _ in range(3)] == [0, 0, 0], "nobody else asks"
    assert await started("quiet", pool.run(burn, 0.0)) == 0
    assert await started("loud", pool.run(burn, 0.0)) == YIELDS
    assert await started("quiet", pool.run(burn, 0.0)) == 0
    await started("quiet", pool.run(burn, 3.0))
    assert await started("quiet", pool.run(burn, 0.0)) == YIELDS
    assert await started("loud", pool.run(burn, 0.0)) == 0, "now it has had less"
    pool.close()


async def test_tenants_that_wait_take_turns() -> None:
    pool = TenantPool(1, "test")
    order: list[str] = []
    holding = [Held(), Held()]
    first = [started("a", pool.run(holding[0])), started("b", pool.run(holding[1]))]
    await asyncio.to_thread(holding[1].began.wait, 60)
    rest = [started("a", pool.run(order.append, f"a{n}")) for n in range(3)]
    await asyncio.sleep(0)
    rest += [started("c", pool.run(order.append, f"c{n}")) for n in range(3)]
    await asyncio.sleep(0)
    holding[1].go.set()  # one thread, for those of c: a is at work already
    await asyncio.wait_for(asyncio.gather(*rest[3:]), 60)
    assert order == ["c0", "c1", "c2"]
    holding[0].go.set()
    await asyncio.wait_for(asyncio.gather(*first, *rest), 60)
    assert order == ["c0", "c1", "c2", "a0", "a1", "a2"]
    pool.close()


async def test_work_whose_caller_goes_before_its_turn_never_runs() -> None:
    pool = TenantPool(1, "test")
    held, ran = Held(), threading.Event()
    first = asyncio.create_task(pool.run(held))
    await asyncio.to_thread(held.began.wait, 60)
    second = asyncio.create_task(pool.run(ran.set))
    await asyncio.sleep(0)
    second.cancel()
    held.go.set()
    await first
    assert await pool.run(lambda: ran.is_set()) is False
    pool.close()


async def test_an_error_comes_back_and_frees_the_thread() -> None:
    pool = TenantPool(1, "test")
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 1, 0)
    assert await pool.run(divmod, 7, 2) == (3, 1)
    pool.close()


def test_a_tenant_holds_no_more_than_its_share() -> None:
    shares = TenantShares(10, "bytes", "EVENMESH_X")
    as_tenant("a")
    with shares.hold(7):
        with (
            pytest.raises(Overloaded, match=r"holds 7 of its 10 bytes, 4 more.*EVENMESH_X") as refused,
            shares.hold(4),
        ):
            pass
        assert refused.value.reason == "SHARE_FULL"
        as_tenant("b")
        with shares.hold(10):
            assert (shares.held("a"), shares.held("b")) == (7, 10)
    assert (shares.held("a"), shares.held("b")) == (0, 0)


def test_without_authentication_all_callers_have_one_share() -> None:
    shares = TenantShares(10, "bytes", "EVENMESH_X")
    with shares.hold(7), pytest.raises(Overloaded) as refused, shares.hold(4):
        pass
    assert refused.value.reason == "OVERLOADED"


def test_a_tenant_finds_only_its_own() -> None:
    cache: TenantCache[str] = TenantCache(100_000)
    cache.put("a", "secret", "vector", 10)
    assert cache.get("a", "secret") == "vector"
    assert cache.get("b", "secret") is None
    cache.drop("b", "secret")
    assert cache.get("a", "secret") == "vector"
    cache.drop("a", "secret")
    assert cache.get("a", "secret") is None
    assert cache.held("a") == 0


def test_a_tenant_that_floods_evicts_only_itself() -> None:
    cache: TenantCache[int] = TenantCache(10 * (ENTRY_BYTES + 10), share=0.5)
    cache.put("quiet", "one", 1, 10)
    for tenant in ("loud", "louder", "loudest"):
        for number in range(50):
            cache.put(tenant, number, number, 10)
            assert cache.held(tenant) <= 5 * (ENTRY_BYTES + 10)
    assert cache.get("quiet", "one") == 1
    assert cache.get("loudest", 49) == 49
    assert cache.get("loudest", 0) is None
    assert sum(map(cache.held, ("quiet", "loud", "louder", "loudest"))) <= 10 * (ENTRY_BYTES + 10)


def test_what_is_larger_than_the_share_is_not_kept() -> None:
    cache: TenantCache[int] = TenantCache(4 * ENTRY_BYTES, share=0.5)
    cache.put("a", "small", 1, 0)
    cache.put("a", "large", 2, 2 * ENTRY_BYTES)
    assert cache.get("a", "large") is None
    assert cache.get("a", "small") == 1
    assert TenantCache[int](0).get("a", "x") is None
