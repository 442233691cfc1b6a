"""Who is served by what, with stand-ins for the models: what goes wrong while they are loaded."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from evenmesh.wire.errors import FailedPrecondition, NotFound, Unavailable
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import DEFAULT_TENANT, Caller, Role
from evenmesh_reranker.domain import Agent, AllAgents
from evenmesh_reranker.models import registry as registries
from evenmesh_reranker.models.retention import prune
from evenmesh_reranker.models.store import Pointer
from evenmesh_reranker.models.token_names import agent_tokens
from evenmesh_reranker.ports import LoadedModel
from tests.support.clock import Clock
from tests.support.registry_world import ANN, Loader, Model, World
from tests.support.waiting import until


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.registry.start(None)
    yield world
    await world.registry.close()
    world.pool.close()


async def test_without_a_model_it_says_what_to_do(world: World) -> None:
    with pytest.raises(FailedPrecondition, match="set something"):
        await world.registry.model_for(ANN)
    with pytest.raises(FailedPrecondition, match="no earlier version that can be served"):
        await world.registry.rollback(AllAgents())


@pytest.mark.parametrize(
    ("score", "said"),
    [
        ("nan", "its scores are no numbers"),
        ("broken", "it cannot be loaded: no such layer"),
        ("-1", "it cannot score: RuntimeError"),
    ],
)
async def test_what_cannot_score_is_refused(world: World, score: str, said: str) -> None:
    good, bad = world.keep("0.5"), world.keep(score)
    await world.registry.promote(good, tenant=DEFAULT_TENANT)
    with pytest.raises(FailedPrecondition, match=f"version {bad} cannot be served: {said}"):
        await world.registry.promote(bad, tenant=DEFAULT_TENANT)
    assert (await world.registry.model_for(ANN)).version == good
    assert world.store.pointer(AllAgents()) == Pointer(good, (None,))


async def test_models_know_registered_agents_also_while_the_registry_is_away(world: World) -> None:
    one, two = world.keep("0.1"), world.keep("0.2")
    await world.registry.promote(one, tenant=DEFAULT_TENANT)
    assert await world.registry.knows(ANN)
    world.registry_away = True
    await world.registry.promote(two, tenant=DEFAULT_TENANT)
    assert await world.registry.knows(ANN)


async def test_agents_own_models_come_and_go(world: World) -> None:
    await world.registry.promote(world.keep("0.1"), tenant=DEFAULT_TENANT)
    agents = [Agent("qa", str(at)) for at in range(3)]
    own = [world.keep(f"0.{at + 2}", agent) for at, agent in enumerate(agents)]
    for version in own:
        await world.registry.promote(version, tenant=DEFAULT_TENANT)
    world.loader.loaded.clear()
    together = await asyncio.gather(*(world.registry.model_for(agent) for agent in agents * 2))
    assert [one.version for one in together] == own * 2
    # One of 100 bytes fits into 150; who asks together loads once.
    assert len(world.loader.loaded) <= 4
    assert (await world.registry.model_for(ANN)).model.version not in own


async def test_a_forgotten_agent_is_served_what_all_get_and_its_versions_are_gone(world: World) -> None:
    everyones, own, candidate = world.keep("0.1"), world.keep("0.2", ANN), world.keep("0.3", ANN)
    bob = Agent("qa", "bob")
    bobs = world.keep("0.4", bob)
    for version in (everyones, own, bobs):
        await world.registry.promote(version, tenant=DEFAULT_TENANT)
    other = world.another()
    await other.start(None)
    for registry in (world.registry, other):
        assert (await registry.model_for(ANN)).version == own
    world.registered.remove(ANN)
    assert await world.registry.forget(ANN) == 2
    assert (await world.registry.model_for(ANN)).version == everyones
    assert world.store.pointer(ANN) == Pointer()
    assert set(world.store.manifests({})) == {everyones, bobs}
    assert {one.version for one in world.registry.models(AllAgents())} == {everyones, bobs}

    async def follows() -> bool:
        return (await other.model_for(ANN)).version == everyones

    async with asyncio.timeout(30):
        while not await follows():
            await asyncio.sleep(0.01)
    for registry in (world.registry, other):
        assert (await registry.model_for(bob)).version == bobs
        # As a trainer that does not know of the deletion asks.
        for version in (own, candidate):
            with pytest.raises(NotFound):
                await registry.promote(version, tenant=DEFAULT_TENANT)
        with pytest.raises(FailedPrecondition, match="no earlier version"):
            await registry.rollback(ANN)
    assert await other.forget(ANN) == 0
    await other.close()


async def test_forgetting_an_agent_without_versions_writes_nothing(world: World) -> None:
    before = world.store.pointers_stamp()
    assert await world.registry.forget(ANN) == 0
    assert world.store.pointers_stamp() == before


async def test_changes_of_tenants_take_turns(world: World) -> None:
    """Of one that deletes hundreds of agents others would wait for each."""
    order: list[str] = []

    async def forget(tenant: str, at: int) -> None:
        callers.enter(Caller(tenant, tenant, frozenset({Role.TRAIN})))
        await world.registry.forget(Agent("qa", f"model {at}", tenant))
        order.append(tenant)

    tasks = [asyncio.create_task(forget("greedy", at)) for at in range(20)]
    tasks.append(asyncio.create_task(forget("polite", 0)))
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks)
    assert order.index("polite") <= 2
    assert len(order) == 21


@pytest.mark.parametrize("score", ["broken", "-1"])
async def test_an_agents_version_that_broke_gives_way_and_is_not_tried_at_each_request(
    world: World, score: str
) -> None:
    everyones = world.keep("0.1")
    await world.registry.promote(everyones, tenant=DEFAULT_TENANT)
    broken = world.keep(score, ANN)
    world.store.set_pointer(ANN, Pointer(broken))
    later = world.another()
    await later.start(None)
    world.loader.loaded.clear()
    for _ in range(3):
        assert (await later.model_for(ANN)).version == everyones
    assert world.loader.loaded == [broken]
    listed = later.models(AllAgents())
    assert {one.version: one.serving for one in listed} == {everyones: True, broken: False}
    await later.close()


async def test_an_agents_version_that_can_be_loaded_again_is_listed_as_serving(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(registries, "time", SimpleNamespace(monotonic=clock))
    everyones, own = world.keep("0.1"), world.keep("0.2", ANN)
    await world.registry.promote(everyones, tenant=DEFAULT_TENANT)
    world.store.set_pointer(ANN, Pointer(own))
    later = world.another()
    await later.start(None)

    def away(*_: object, **__: object) -> NoReturn:
        raise Unavailable("STORE_UNAVAILABLE", "away")

    with monkeypatch.context() as patch:
        patch.setattr(world.loader, "full", away)
        assert (await later.model_for(ANN)).version == everyones
    assert {one.version: one.serving for one in later.models(AllAgents())} == {everyones: True, own: False}
    clock.now += 61
    assert (await later.model_for(ANN)).version == own
    assert {one.version: one.serving for one in later.models(AllAgents())} == {everyones: True, own: True}
    await later.close()


async def test_what_another_process_promotes_is_followed(world: World) -> None:
    one, own = world.keep("0.1"), world.keep("0.2", ANN)
    other = world.another()
    await other.start(None)
    await other.promote(one, tenant=DEFAULT_TENANT)
    await other.promote(own, tenant=DEFAULT_TENANT)
    async with asyncio.timeout(30):
        while {model.version for model in world.registry.models(AllAgents()) if model.serving} != {one, own}:
            await world.registry.refresh()
            await asyncio.sleep(0.01)
    assert (await world.registry.model_for(ANN)).version == own
    assert (await world.registry.model_for(Agent())).version == one
    await other.close()


async def test_promotions_are_followed_after_an_unforeseen_failure(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.keep("0.1"), world.keep("0.2")
    real, failed = world.loader.full, asyncio.Event()

    def failing(folder: Path, version: str, *, provenance: str, created_at: datetime) -> LoadedModel:
        if version == one:
            failed.set()
            raise RuntimeError("unforeseen")
        return real(folder, version, provenance=provenance, created_at=created_at)

    monkeypatch.setattr(world.loader, "full", failing)
    world.store.set_pointer(AllAgents(), Pointer(one))
    await until(failed.is_set)
    world.store.set_pointer(AllAgents(), Pointer(two, (one,)))
    await until(lambda: world.registry.has_model)
    assert (await world.registry.model_for(ANN)).version == two


async def test_a_disk_that_fails_leaves_what_serves(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    everyones, own = world.keep("0.1"), world.keep("0.2", ANN)
    await world.registry.promote(everyones, tenant=DEFAULT_TENANT)
    world.store.set_pointer(ANN, Pointer(own))
    later = world.another()
    await later.start(None)

    def full(_: str) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")

    monkeypatch.setattr(world.store, "verified", full)  # as one of a bucket, which fetches what it verifies
    with pytest.raises(Unavailable, match=r"cannot be read now: No space left on device$"):
        await world.registry.promote(own, tenant=DEFAULT_TENANT)
    assert (await later.model_for(ANN)).version == everyones
    await later.close()


async def test_what_is_promoted_while_a_registry_starts_is_followed(world: World) -> None:
    one, two = world.keep("0.1"), world.keep("0.2")
    world.store.set_pointer(AllAgents(), Pointer(one))
    await asyncio.sleep(0.02)  # a file system's clock ticks every few milliseconds

    class Meanwhile(Loader):
        def full(self, folder: Path, version: str, *, provenance: str, created_at: datetime) -> LoadedModel:
            if version == one:
                world.store.set_pointer(AllAgents(), Pointer(two, (one,)))
            return super().full(folder, version, provenance=provenance, created_at=created_at)

    world.loader = Meanwhile()
    later = world.another()
    await later.start(None)
    async with asyncio.timeout(30):
        while (await later.model_for(ANN)).version != two:
            await asyncio.sleep(0.01)
    await later.close()


async def test_a_pointer_that_cannot_be_read_leaves_what_serves(world: World, tmp_path: Path) -> None:
    version = world.keep("0.1")
    await world.registry.promote(version, tenant=DEFAULT_TENANT)
    (tmp_path / "serving" / "all.json").write_text("{")
    (tmp_path / "serving" / "touch").write_text("")
    await until(world.registry.stale)
    assert world.registry.failures == 1
    assert (await world.registry.model_for(ANN)).version == version
    later = world.another()
    await later.start(None)
    with pytest.raises(FailedPrecondition):
        await later.model_for(ANN)
    assert later.stale()
    assert (await later.promote(version, tenant=DEFAULT_TENANT)).serving
    await until(lambda: not later.stale())
    await until(lambda: not world.registry.stale())
    await later.close()


async def test_it_reports_that_an_earlier_version_serves_than_was_promoted(world: World) -> None:
    good, broken = world.keep("0.1"), world.keep("broken")
    await world.registry.promote(good, tenant=DEFAULT_TENANT)
    assert (world.registry.stale(), world.registry.failures) == (False, 0)
    world.store.set_pointer(AllAgents(), Pointer(broken, (good,)))
    await until(world.registry.stale)
    await until(lambda: world.registry.failures == 1)
    assert (await world.registry.model_for(ANN)).version == good
    await world.registry.rollback(AllAgents())
    assert not world.registry.stale()


async def test_old_versions_are_removed_while_others_serve(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [world.keep(f"0.{at}") for at in range(4)]
    for version in versions:
        await world.registry.promote(version, tenant=DEFAULT_TENANT)
    monkeypatch.setattr("evenmesh_reranker.models.registry._PRUNE_S", 0.0)
    monkeypatch.setattr("evenmesh_reranker.models.registry.prune", partial(prune, grace=timedelta(0)))
    keeping = world.another(keep_versions=1)
    await keeping.start(None)
    await until(lambda: versions[0] not in {one.version for one in keeping.models(AllAgents())}, 30)
    # Served, served before, and the newest of the others.
    assert set(world.store.manifests({})) == set(versions[1:])
    assert {one.version for one in keeping.models(AllAgents())} == set(versions[1:])
    assert (await keeping.rollback(AllAgents())).version == versions[2]
    await keeping.close()


async def test_a_version_is_its_tenants_alone(world: World) -> None:
    theirs_ann = Agent(ANN.task_id, ANN.model_id, "acme")
    ours, theirs = world.keep("0.1"), world.keep("0.1", tenant="acme")
    assert ours != theirs  # of the same files
    own = world.keep("0.3", theirs_ann, tenant="acme")
    for version in (theirs, own):
        with pytest.raises(NotFound, match=version):
            await world.registry.promote(version, tenant=DEFAULT_TENANT)
    with pytest.raises(NotFound, match=ours):
        await world.registry.promote(ours, tenant="acme")
    await world.registry.promote(theirs, tenant="acme")
    with pytest.raises(FailedPrecondition, match="set something"):
        await world.registry.model_for(ANN)
    await world.registry.promote(ours, tenant=DEFAULT_TENANT)
    await world.registry.promote(own, tenant="acme")
    for agent, version in ((ANN, ours), (theirs_ann, own), (Agent("qa", "bob", "acme"), theirs)):
        assert (await world.registry.model_for(agent)).version == version
    listed = {
        tenant: {(one.version, one.serving) for one in world.registry.models(AllAgents(tenant))}
        for tenant in (DEFAULT_TENANT, "acme", "nobody")
    }
    assert listed == {DEFAULT_TENANT: {(ours, True)}, "acme": {(theirs, True), (own, True)}, "nobody": set()}
    assert [one.version for one in world.registry.models(theirs_ann)] == [own]
    assert world.registry.models(ANN) == []
    with pytest.raises(FailedPrecondition, match="no earlier version that can be served"):
        await world.registry.rollback(AllAgents("nobody"))

    # Another process finds all of it again, and serves each its own.
    later = world.another()
    await later.start(None)
    try:
        for agent, version in ((ANN, ours), (theirs_ann, own), (Agent("qa", "bob", "acme"), theirs)):
            assert (await later.model_for(agent)).version == version
    finally:
        await later.close()


async def test_whether_a_registered_agent_is_known_takes_no_reading_of_all(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> frozenset[str]:
        raise AssertionError("the tokens of all agents were read")

    registry = world.another()
    await registry.start(Model("origin", "shipped", datetime.now(UTC), 0.5))
    monkeypatch.setattr(registry, "_visible_tokens", read)
    try:
        mine = Agent("qa", "mine", "acme")
        await registry.register(mine)
        assert await registry.knows(mine)
    finally:
        await registry.close()


async def test_agents_that_are_not_registered_are_listed_without_reading_all_for_each(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of them read the agents of all tenants a thousand times, on the event loop."""
    read: list[Agent] = []

    def counted(agent: Agent) -> frozenset[str]:
        read.append(agent)
        return agent_tokens(agent)

    registry = world.another(poll_s=3600)
    await registry.start(Model("origin", "shipped", datetime.now(UTC), 0.5))
    try:
        for number in range(20):
            await registry.register(Agent(f"t{number}", f"m{number}", "acme"))
        monkeypatch.setattr(registries, "agent_tokens", counted)
        for number in range(20):
            assert await registry.knows(Agent(f"t{number}", "m0", "acme"))
            assert not await registry.knows(Agent(f"t{number}", "m0", "other"))
            assert not await registry.knows(Agent(f"t{number}", "m99", "acme"))
        assert len(read) <= 21 + 2 * 20  # once those of all, and those that are asked about
    finally:
        await registry.close()


async def test_the_model_of_the_settings_is_every_tenants(world: World) -> None:
    origin = Model("origin", "shipped", datetime.now(UTC), 0.5)
    registry = world.another()
    await registry.start(origin)
    try:
        theirs = world.keep("0.1", tenant="acme")
        await registry.promote(theirs, tenant="acme")
        for tenant, version in (("acme", theirs), (DEFAULT_TENANT, "origin"), ("other", "origin")):
            assert (await registry.model_for(Agent(tenant=tenant))).version == version
        # A tenant is reported that it is there, and of its own agents' tokens in it alone: ANN is another's.
        [reported] = registry.models(AllAgents("other"))
        assert (reported.version, reported.serving, reported.agent_tokens) == ("origin", True, ())
        assert not await registry.knows(Agent(ANN.task_id, ANN.model_id, "other"))
        assert await registry.knows(ANN)
        await registry.register(Agent(ANN.task_id, ANN.model_id, "other"))
        assert await registry.knows(Agent(ANN.task_id, ANN.model_id, "other"))
        assert (await registry.rollback(AllAgents("acme"))).version == "origin"
        assert (await registry.promote(theirs, tenant="acme")).serving
        assert (await registry.promote("origin", tenant="acme")).serving
        assert (await registry.model_for(Agent(tenant="acme"))).version == "origin"
    finally:
        await registry.close()


async def test_of_a_tenants_versions_that_are_damaged_the_latest_that_is_not_serves(world: World) -> None:
    good, bad = world.keep("0.1", tenant="acme"), world.keep("0.2", tenant="acme")
    await world.registry.promote(good, tenant="acme")
    await world.registry.promote(bad, tenant="acme")
    (world.store.verified(bad)[0] / "score").write_text("9")
    later = world.another()
    await later.start(None)
    try:
        assert (await later.model_for(Agent(tenant="acme"))).version == good
        assert next((one.version, one.serving) for one in later.models(AllAgents("acme"))) == (good, True)
        with pytest.raises(FailedPrecondition, match="should have 3"):
            await later.promote(bad, tenant="acme")
    finally:
        await later.close()


async def test_a_version_that_is_damaged_while_it_serves_serves_no_more(world: World) -> None:
    for tenant in (DEFAULT_TENANT, "acme"):
        good, bad = world.keep("0.1", tenant=tenant), world.keep("0.2", tenant=tenant)
        for version in (good, bad):
            await world.registry.promote(version, tenant=tenant)
        agent = Agent(tenant=tenant)
        assert (await world.registry.model_for(agent)).version == bad
        # Written anew with the same content it serves on; only damage counts.
        path = world.store.folder(bad) / "score"
        path.write_bytes(path.read_bytes())
        await asyncio.sleep(0.1)
        assert (await world.registry.model_for(agent)).version == bad
        path.write_text("9")
        async with asyncio.timeout(60):
            while (await world.registry.model_for(agent)).version == bad:
                await asyncio.sleep(0.01)
        # As a process does that reads the files anew, such as the trainer.
        later = world.another()
        await later.start(None)
        try:
            assert (await later.model_for(agent)).version == good
            assert (await world.registry.model_for(agent)).version == good
        finally:
            await later.close()
