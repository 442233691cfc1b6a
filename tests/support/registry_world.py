"""Model registries over one store, with stand-ins for the models."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models.file_promotions import FilePromotions
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.ports import Promotions, VersionStore
from evenmesh_reranker.models.registry import ModelRegistry
from evenmesh_reranker.models.store import ModelStore
from evenmesh_reranker.models.token_names import agent_tokens
from evenmesh_reranker.ports import Adapter, LoadedModel, Row

ANN = Agent("qa", "ann")


class Model:
    """Scores every row by the number in its file; one below zero cannot be computed."""

    device = "cpu"

    def __init__(self, version: str, provenance: str, created_at: datetime, score: float) -> None:
        self.version = version
        self.provenance = provenance
        self.created_at = created_at
        self.size = 100
        self.score = score
        self.agents: list[Agent] = []

    @property
    def fusions(self) -> Fusions:
        return Fusions()

    @property
    def reads_asking(self) -> bool:
        return False

    @property
    def parallel(self) -> int:
        return 1

    @property
    def agent_tokens(self) -> tuple[str, ...]:
        return tuple(sorted({token for agent in self.agents for token in agent_tokens(agent)}))

    def knows(self, agent: Agent) -> bool:
        return agent_tokens(agent) <= set(self.agent_tokens)

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        return [Row((1,), None) for _ in texts]

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[Adapter | None]) -> list[float]:
        if self.score < 0:
            raise RuntimeError("the layers do not fit")
        return [self.score] * len(rows)

    def add_agents(self, agents: Sequence[Agent]) -> None:
        self.agents.extend(agents)


class Loader:
    """Reads the number in a version's file."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def full(self, folder: Path, version: str, *, provenance: str, created_at: datetime) -> LoadedModel:
        self.loaded.append(version)
        text = (folder / "score").read_text()
        if text == "broken":
            raise ModelError(f"{folder} cannot be loaded: no such layer")
        return Model(version, provenance, created_at, float(text))

    def adapter(self, folder: Path, version: str, base: LoadedModel) -> Adapter:
        raise AssertionError("there are no adapters here")

    def merge_tokens(self, source: LoadedModel, folder: Path, target: Path) -> tuple[str, ...]:
        return ()


class World:
    """A registry over a store, and a registry that can be away."""

    def __init__(self, folder: Path) -> None:
        self.store = ModelStore(folder)
        self.loader = Loader()
        self.pool = ComputePool(1, "test")
        self.registry_away = False
        self.registered = [ANN]
        self.registry = self.another()

    def another(
        self,
        keep_versions: int | None = None,
        *,
        store: VersionStore | None = None,
        promotions: Promotions | None = None,
        poll_s: float = 0.01,
    ) -> ModelRegistry:
        """A registry as another process has it."""

        async def loader() -> Loader:
            return self.loader

        async def registered() -> Sequence[Agent]:
            if self.registry_away:
                raise Unavailable("STORE_UNAVAILABLE", "away")
            return list(self.registered)

        return ModelRegistry(
            store or self.store,
            promotions=promotions or FilePromotions(self.store),
            loader=loader,
            pool=self.pool,
            memory_bytes=150,
            registered=registered,
            no_model="set something",
            poll_s=poll_s,
            keep_versions=keep_versions,
        )

    def keep(self, score: str, agent: Agent | None = None, *, tenant: str = DEFAULT_TENANT) -> str:
        with self.store.write(Lineage(f"score {score}", agent=agent, tenant=tenant)) as draft:
            (draft.folder / "score").write_text(score)
        return draft.version
