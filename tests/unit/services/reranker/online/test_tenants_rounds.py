"""The trainer works for all tenants, and for each agent as its tenant."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from services.reranker.domain import DEFAULT_TENANT, Agent, Everyone
from tests import tiny_encoders
from tests.online_world import World, likes

ANN = Agent("qa", "ann")
THEIRS = replace(ANN, tenant="acme")


async def test_what_a_tenants_agent_says_is_learned_for_that_tenant_alone(world: World, folder: Path) -> None:
    base = await asyncio.to_thread(tiny_encoders.keep, world.models, folder, "of acme", tenant="acme")
    await world.governor.promote(base, tenant="acme")
    await world.says(THEIRS, likes("water"), range(48))
    assert (await world.training(ANN)).pending == 0
    assert await world.trainer().turn()
    assert not await world.trainer().turn()  # nobody else gave anything

    own = (await world.governor.model_for(THEIRS)).version
    manifest = world.models.manifest(own)
    assert (manifest.lineage.whose, manifest.lineage.base) == (THEIRS, base)
    assert world.promoting.asked == [own]  # as the tenant: it is nobody else's to promote
    assert world.passages.tenants == ["acme"]
    assert (await world.training(THEIRS)).pending == 0
    everyones = world.models.pointer(Everyone()).serving
    assert (await world.governor.model_for(ANN)).version == everyones
    await world.governor.refresh()
    assert [one.version for one in world.governor.models(Everyone(DEFAULT_TENANT))] == [everyones]
