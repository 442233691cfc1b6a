"""Values loaded on demand in bounded memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from evenmesh.wire import deadline
from evenmesh.wire.deadline import Deadline
from evenmesh_reranker.models.cache import LoadingCache


@dataclass(frozen=True)
class Value:
    name: str
    size: int = 10


class Loader:
    """Loads values, when it is let."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.proceed = asyncio.Event()
        self.proceed.set()

    async def load(self, name: str) -> Value:
        self.loaded.append(name)
        await self.proceed.wait()
        if name == "bad":
            raise OSError("no")
        return Value(name)


async def test_the_least_recently_used_is_let_go_of() -> None:
    cache, loader = LoadingCache[Value](25), Loader()
    for name in ("a", "b", "a", "c", "a", "b"):
        assert (await cache.get("t", name, lambda name=name: loader.load(name))).name == name  # type: ignore[misc]
        assert cache.size <= 25
    assert loader.loaded == ["a", "b", "c", "b"]


async def test_who_waits_together_loads_once_and_one_may_leave() -> None:
    cache, loader = LoadingCache[Value](100), Loader()
    loader.proceed.clear()
    waiting = [asyncio.create_task(cache.get("t", "a", lambda: loader.load("a"))) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    loader.proceed.set()
    assert [one.name for one in await asyncio.gather(*waiting[1:])] == ["a", "a"]
    assert loader.loaded == ["a"]


async def test_a_load_goes_on_after_the_deadline_of_who_began_it() -> None:
    cache = LoadingCache[Value](100)

    async def load() -> Value:
        deadline.current().budget()  # as each turn of a database is waited for
        return Value("a")

    async def hurried() -> Value:
        deadline.enter(Deadline.after(0.0))
        return await cache.get("t", "a", load)

    first = asyncio.create_task(hurried())
    second = asyncio.create_task(cache.get("t", "a", load))
    assert [one.name for one in await asyncio.gather(first, second)] == ["a", "a"]


async def test_what_failed_is_tried_again() -> None:
    cache, loader = LoadingCache[Value](100), Loader()
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            await cache.get("t", "bad", lambda: loader.load("bad"))
    assert loader.loaded == ["bad", "bad"]


async def test_what_is_too_large_is_kept_alone() -> None:
    cache = LoadingCache[Value](5)

    async def load() -> Value:
        return Value("a")

    await cache.get("t", "a", load)
    assert cache.size == 10


async def test_a_tenant_with_many_models_lets_go_of_its_own() -> None:
    cache, loader = LoadingCache[Value](40), Loader()  # four values of ten bytes
    await cache.get("quiet", "q", lambda: loader.load("q"))
    for name in [f"l{number}" for number in range(20)]:
        await cache.get("loud", name, lambda name=name: loader.load(name))  # type: ignore[misc]
    assert loader.loaded[0] == "q"
    assert len(loader.loaded) == 21
    await cache.get("quiet", "q", lambda: loader.load("q"))
    assert len(loader.loaded) == 21  # it was still there
    assert cache.size <= 40
