"""Agents' own parameters are in memory while they are used, and bounded however many agents there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.placement import Placement
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.backends.encoder import EncoderLoader
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models.file_promotions import FilePromotions
from evenmesh_reranker.models.registry import ModelRegistry
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.ports import Adapter, LoadedModel
from tests.support import tiny_encoders
from tests.support.online_world import Stream, corpus


class Counting(EncoderLoader):
    """Counts the adapters it loads."""

    def __init__(self) -> None:
        super().__init__(Placement.choose("cpu", "float32"))
        self.loaded: list[str] = []

    def adapter(self, folder: Path, version: str, base: LoadedModel) -> Adapter:
        self.loaded.append(version)
        return super().adapter(folder, version, base)


async def test_more_agents_than_fit_each_get_their_own(folder: Path, tmp_path: Path) -> None:
    loader, pool = Counting(), ComputePool(2, "test")
    store = ModelStore(tmp_path)
    base = tiny_encoders.keep(store, folder, "offline-ium")
    agents = [Agent("qa", f"agent-{number}") for number in range(6)]
    own = {
        agent: tiny_encoders.keep_adapter(store, base, agent, seed) for seed, agent in enumerate(agents, 1)
    }

    async def loaded() -> EncoderLoader:
        return loader

    async def nobody() -> Sequence[Agent]:
        return ()

    # Room for two of the six: each has 2 (32 + 32) and 2 (32 + 1) numbers of four bytes.
    size = 4 * (2 * (32 + 32) + 2 * (32 + 1))
    registry = ModelRegistry(
        store,
        promotions=FilePromotions(store),
        loader=loaded,
        pool=pool,
        memory_bytes=2 * size,
        registered=nobody,
        no_model="there is none",
        poll_s=60,
    )
    await registry.start(None)
    await registry.promote(base, tenant=DEFAULT_TENANT)
    for version in own.values():
        await registry.promote(version, tenant=DEFAULT_TENANT)
    reranker = CrossEncoderReranker(registry, pool=pool, batch_size=16, batch_tokens=4096, max_delay_s=0.0)
    stream = Stream(corpus(20))
    query, passages = stream.query(0), stream.candidates(0)

    async def score(agent: Agent) -> tuple[float, ...]:
        scores = await reranker.score(query, passages, agent)
        assert scores.model_version == own.get(agent, base)
        return scores.values

    alone = [await score(agent) for agent in agents]
    assert len(set(alone)) == len(agents)
    together = await asyncio.gather(*(score(agent) for agent in agents * 3))
    for agent_at, values in enumerate(together):
        assert max(abs(one - other) for one, other in zip(values, alone[agent_at % 6], strict=True)) < 1e-4
    everyones = await score(Agent("qa", "another"))
    assert everyones not in alone

    # The last two that came are there; the one before them is loaded again.
    loader.loaded.clear()
    for agent in (*agents, *agents[4:], agents[3]):
        await score(agent)
    assert loader.loaded[-1] == own[agents[3]]
    assert loader.loaded.count(own[agents[5]]) <= 1
    await reranker.close()
    await registry.close()
    pool.close()
