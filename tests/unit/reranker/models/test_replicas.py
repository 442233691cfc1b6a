"""Registries of several rerankers over one store and one database: they agree, and lose no promotion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import URL

from evenmesh.wire.errors import FailedPrecondition, NotFound, Unavailable
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.promotions import SqlPromotions
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.models.bucket import BucketStore
from evenmesh_reranker.models.manifest import Lineage, StoreAwayError
from evenmesh_reranker.models.ports import VersionStore
from evenmesh_reranker.models.registry import ModelRegistry
from evenmesh_reranker.models.retention import prune
from evenmesh_reranker.models.store import ModelStore, Pointer
from tests.support.registry_world import ANN, Model, World
from tests.support.waiting import until

ALL = AllAgents()
promoting = partial(ModelRegistry.promote, tenant=DEFAULT_TENANT)


class Replicas(World):
    """Two registries that look at what the other did only when they are asked to, or at each poll."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self._database = Database(URL.create("sqlite+aiosqlite", database=str(folder / "feedback.db")))
        self.promotions = SqlPromotions(self._database)
        self._open: list[ModelRegistry] = []

    async def opened(
        self,
        *,
        poll_s: float = 3600,
        keep_versions: int | None = None,
        store: VersionStore | None = None,
        default: Model | None = None,
    ) -> ModelRegistry:
        if not self._open:
            await self._database.open()
        made = self.another(keep_versions, store=store, promotions=self.promotions, poll_s=poll_s)
        await made.start(default)
        self._open.append(made)
        return made

    async def close(self) -> None:
        for one in self._open:
            await one.close()
        await self._database.close()
        self.pool.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Replicas]:
    world = Replicas(tmp_path)
    yield world
    await world.close()


async def _served(registry: ModelRegistry, agent: Agent = ANN) -> str:
    try:
        return (await registry.model_for(agent)).version
    except FailedPrecondition:
        return ""  # nothing serves yet


async def test_of_two_promotions_at_once_one_serves_and_the_other_is_rolled_back_to(world: Replicas) -> None:
    first, left, right = (world.keep(f"0.{at}") for at in (1, 2, 3))
    a, b = await world.opened(poll_s=0.01), await world.opened(poll_s=0.01)
    await promoting(a, first)
    one, two = await asyncio.gather(promoting(a, left), promoting(b, right))
    assert {one.version, two.version} == {left, right}
    pointer = await world.promotions.pointer(ALL)
    assert {pointer.serving, pointer.history[0]} == {left, right}
    assert pointer.history[1:] == (first, None)

    async def agree() -> bool:
        return await _served(a) == await _served(b) == pointer.serving

    await until(agree)
    rolled_back = await a.rollback(ALL)
    assert rolled_back.version == pointer.history[0]


async def test_who_has_not_looked_yet_changes_what_is_promoted_now(world: Replicas) -> None:
    one, two, three = (world.keep(f"0.{at}") for at in (1, 2, 3))
    own = world.keep("0.4", ANN)
    a, b = await world.opened(), await world.opened()
    await promoting(a, one)
    await promoting(a, two)
    await promoting(b, three)
    assert await world.promotions.pointer(ALL) == Pointer(three, (two, one, None))
    # a still knows of two alone; rolled back is three nevertheless.
    assert (await a.rollback(ALL)).version == two
    assert (await b.rollback(ALL)).version == one
    await promoting(a, own)
    assert (await b.rollback(ANN)).version == one
    with pytest.raises(FailedPrecondition, match="no earlier version"):
        await a.rollback(ANN)


async def test_a_roll_back_changes_nothing_that_was_promoted_meanwhile(
    world: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (world.keep(f"0.{at}") for at in (1, 2, 3))
    a, b = await world.opened(), await world.opened()
    for version in (one, two):
        await promoting(a, version)
    replace, raced = world.promotions.replace, asyncio.Event()

    async def late(scope: AllAgents, before: Pointer, after: Pointer) -> bool:
        if not raced.is_set():
            raced.set()
            await promoting(b, three)
        return await replace(scope, before, after)

    monkeypatch.setattr(world.promotions, "replace", late)
    with pytest.raises(FailedPrecondition, match="look at the models, and try again") as raised:
        await a.rollback(ALL)
    assert raised.value.reason == "CHANGED_MEANWHILE"
    assert await world.promotions.pointer(ALL) == Pointer(three, (two, one, None))
    assert (await a.rollback(ALL)).version == two
    # A promotion does not mind: it is for whatever serves.
    raced.clear()
    await promoting(a, one)
    assert await world.promotions.pointer(ALL) == Pointer(one, (three, two, one, None))


async def _knows(model: Model, agent: Agent) -> bool:
    return model.knows(agent)


async def test_agents_that_one_registers_are_known_to_all(world: Replicas) -> None:
    theirs = Agent("qa", "bob", "acme")
    ours, acmes = world.keep("0.1"), world.keep("0.2", tenant="acme")
    origin = [Model("origin", "shipped", datetime.now(UTC), 0.5) for _ in range(2)]
    a = await world.opened(default=origin[0])
    b = await world.opened(default=origin[1], poll_s=0.01)
    await promoting(a, ours)
    await a.promote(acmes, tenant="acme")

    async def follows() -> bool:
        return await _served(b, theirs) == acmes and await _served(b) == ours

    await until(follows)
    for agent in (Agent("qa", "carl"), theirs):
        world.registered.append(agent)
        await a.register(agent)
        assert await a.knows(agent)
        await until(partial(b.knows, agent))
        await until(partial(_knows, origin[1], agent))  # a moment later: one poll reads both


async def test_what_could_not_be_read_is_served_when_it_can_be(
    world: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.keep("0.1"), world.keep("0.2")
    monkeypatch.setattr("evenmesh_reranker.models.registry._RETRY_S", 0.05)

    class Away(ModelStore):
        away = True

        def verified(self, version: str) -> tuple[Path, object]:  # type: ignore[override]
            if self.away and version == two:
                raise StoreAwayError("the bucket cannot be used now")
            return super().verified(version)

    store = Away(world.folder)
    a, b = await world.opened(), await world.opened(poll_s=0.01, store=store)
    await promoting(a, one)

    async def serves(version: str) -> bool:
        return await _served(b) == version

    await until(partial(serves, one))
    with pytest.raises(Unavailable, match=f"version {two} cannot be read now"):
        await promoting(b, two)
    await promoting(a, two)

    async def reports() -> bool:
        return b.stale() and b.failures > 0

    await until(reports)
    assert await _served(b) == one
    store.away = False
    await until(partial(serves, two))
    assert not b.stale()


async def test_what_serves_goes_on_while_its_files_cannot_be_looked_at(world: Replicas) -> None:
    version = world.keep("0.1")

    class Away(ModelStore):
        looked = 0
        state_known = True

        def state(self, version: str) -> tuple[tuple[str, int, int], ...] | None:
            self.looked += 1
            return super().state(version) if self.state_known else None

        def verified(self, version: str) -> tuple[Path, object]:  # type: ignore[override]
            if self.looked > 1:
                raise StoreAwayError("its file system does not answer")
            return super().verified(version)

    store = Away(world.folder)
    b = await world.opened(poll_s=0.01, store=store)
    await promoting(b, version)

    async def looked_on() -> bool:
        return store.looked > before + 3

    for damage in (False, True):
        store.state_known, before = damage, store.looked
        if damage:  # its files changed, and whether they are whole cannot be read now
            (world.store.folder(version) / "score").touch()
        await until(looked_on)
        assert await _served(b) == version


async def test_a_database_that_is_away_stops_no_replica(
    world: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.keep("0.1"), world.keep("0.2")
    a, b = await world.opened(), await world.opened(poll_s=0.01)
    await promoting(a, one)

    async def serves(version: str) -> bool:
        return await _served(b) == version

    await until(partial(serves, one))
    stamp, asked = world.promotions.stamp, []

    async def away() -> object:
        asked.append(1)
        raise Unavailable("STORE_UNAVAILABLE", "away")

    monkeypatch.setattr(world.promotions, "stamp", away)
    await promoting(a, two)

    async def asked_often() -> bool:
        return len(asked) > 3

    await until(asked_often)
    assert await _served(b) == one
    monkeypatch.setattr(world.promotions, "stamp", stamp)
    await until(partial(serves, two))


async def test_a_replica_keeps_what_it_serves_and_no_version_is_promoted_while_it_is_removed(
    world: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [world.keep(f"0.{at}") for at in range(1, 5)]
    a, b = await world.opened(), await world.opened()
    for version in versions[:3]:
        await promoting(a, version)
    behind = versions[0]  # what b would serve that missed all promotions since
    clean = partial(prune, world.store, world.promotions, keep=1, grace=timedelta(microseconds=1))
    await clean()
    assert world.store.marks().keys() == {behind}
    await clean(in_memory=[behind])
    assert world.store.marks() == {}
    await clean()

    # Marked for long enough: b promotes it, at any point of a's removing it.
    remove, outcomes = world.store.remove, []

    def removing(version: str) -> bool:
        asyncio.run_coroutine_threadsafe(promote_now(), loop).result(60)
        return remove(version)

    async def promote_now() -> None:
        try:
            outcomes.append((await promoting(b, behind)).version)
        except NotFound as error:
            outcomes.append(error.reason)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(world.store, "remove", removing)
    assert await clean() == [behind]
    assert outcomes == ["NOT_FOUND"]
    assert (await world.promotions.pointer(ALL)).serving == versions[2]
    with pytest.raises(NotFound, match=behind):
        await promoting(b, behind)


async def test_versions_of_a_bucket_serve_in_all(world: Replicas) -> None:
    address = f"memory://{world.folder.name}"
    stores = [BucketStore(address, world.folder / name, local_bytes=10_000) for name in ("a", "b", "trainer")]
    a, b = await world.opened(store=stores[0]), await world.opened(store=stores[1], poll_s=0.01)
    versions = []
    for score in ("0.1", "0.2", "broken"):
        with stores[2].write(Lineage(score)) as draft:
            (draft.folder / "score").write_text(score)
        versions.append(draft.version)

    async def serves(version: str) -> bool:
        return await _served(b) == version

    for version in versions[:2]:
        await promoting(a, version)
        await until(partial(serves, version))
    with pytest.raises(FailedPrecondition, match="it cannot be loaded: no such layer"):
        await promoting(a, versions[2])
    assert (await b.rollback(ALL)).version == versions[0]
    assert {one.version for one in a.models(ALL)} == set(versions)
    # Gone from the bucket, it serves no more.
    await promoting(a, versions[1])
    await until(partial(serves, versions[1]))
    stores[2].remove(versions[1])
    await until(partial(serves, versions[0]))


async def test_a_promotion_of_what_was_removed_a_moment_ago_is_undone(
    world: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.keep("0.1"), world.keep("0.2")
    a = await world.opened()
    await promoting(a, one)
    replace = world.promotions.replace

    async def late(scope: AllAgents, before: Pointer, after: Pointer) -> bool:
        world.store.remove(two)
        return await replace(scope, before, after)

    monkeypatch.setattr(world.promotions, "replace", late)
    with pytest.raises(NotFound, match="was removed, as nothing needed it"):
        await promoting(a, two)
    assert await world.promotions.pointer(ALL) == Pointer(one, (None,))
    assert await _served(a) == one
