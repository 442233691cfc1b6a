"""The trainer works for all tenants, and for each agent as its tenant."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.domain import Agent, AllAgents
from tests.support import tiny_encoders
from tests.support.online_world import World, likes

ANN = Agent("qa", "ann")
THEIRS = replace(ANN, tenant="acme")


@pytest.mark.slow
async def test_what_a_tenants_agent_says_is_learned_for_that_tenant_alone(world: World, folder: Path) -> None:
    base = await asyncio.to_thread(tiny_encoders.keep, world.models, folder, "of acme", tenant="acme")
    await world.registry.promote(base, tenant="acme")
    await world.says(THEIRS, likes("water"), range(48))
    assert (await world.training(ANN)).pending == 0
    assert await world.trainer().turn()
    assert not await world.trainer().turn()  # nobody else gave anything

    own = (await world.registry.model_for(THEIRS)).version
    manifest = world.models.manifest(own)
    assert (manifest.lineage.scope, manifest.lineage.base) == (THEIRS, base)
    assert world.promoting.asked == [own]  # as the tenant: it is nobody else's to promote
    assert world.passages.tenants == ["acme"]
    assert (await world.training(THEIRS)).pending == 0
    everyones = world.models.pointer(AllAgents()).serving
    assert (await world.registry.model_for(ANN)).version == everyones
    await world.registry.refresh()
    assert [one.version for one in world.registry.models(AllAgents(DEFAULT_TENANT))] == [everyones]
