"""What serves an agent now, by the reranker's own rule, loaded for training to start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from evenmesh.wire.errors import FailedPrecondition
from evenmesh_kit.compute.devices import DeviceError
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.settings import SettingsError, variable
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader
from evenmesh_reranker.domain import Agent, AllAgents, Scope
from evenmesh_reranker.models.assignment import VersionLoader, model_of_agent, model_of_all
from evenmesh_reranker.models.default_model import default_model
from evenmesh_reranker.models.manifest import Kind, Manifest, ManifestError
from evenmesh_reranker.models.ports import Promotions, VersionStore
from evenmesh_reranker.models.store import Pointer
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_training.online.candidates import Parameters
from evenmesh_training.online.settings import OnlineSettings

DefaultModel = Callable[[], tuple[Path, str]]
"""Returns folder and version of the default model."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What serves an agent.

    Attributes:
        base: the model of all agents of the tenant.
        parameters: what scores for the agent.
        folder: folder of the model in ``parameters``.
        own: manifest of the agent's own version; None if it gets what all agents get.
    """

    base: Encoder
    parameters: Parameters
    folder: Path
    own: Manifest | None

    @property
    def version(self) -> str:
        """Version that the agent's replies name."""
        return self.base.version if self.own is None else self.own.version


class ServedModels:
    """Finds and loads what serves an agent. Models compute in float32, which training needs.

    Args:
        store: the versions.
        promotions: which of them are promoted.
        default: the default model; None if the settings name none.
        loader: loads models.
        pool: the thread that loads.
    """

    def __init__(
        self,
        store: VersionStore,
        promotions: Promotions,
        default: DefaultModel | None,
        loader: EncoderLoader,
        pool: ComputePool,
    ) -> None:
        self._store = store
        self._promotions = promotions
        self._default = default
        self._loader = loader
        self._versions = VersionLoader(store, loader)
        self._pool = pool

    @classmethod
    def from_settings(
        cls,
        settings: OnlineSettings,
        reranker: RerankerSettings,
        store: VersionStore,
        promotions: Promotions,
        pool: ComputePool,
    ) -> ServedModels:
        """Return those of the reranker with these settings; call it in a thread.

        Raises:
            SettingsError: there is no such device.
        """
        try:
            loader = EncoderLoader.create(
                settings.device, "float32", threads=settings.threads, max_length=reranker.max_length
            )
        except DeviceError as error:
            raise SettingsError(f"{variable(settings, 'device')}={settings.device!r}: {error}") from None
        default = (lambda: default_model(reranker)) if reranker.cross_encoder else None
        return cls(store, promotions, default, loader, pool)

    async def find(self, agent: Agent) -> ServedModel:
        """Return what serves an agent; damaged versions are skipped as the reranker skips them.

        Raises:
            FailedPrecondition: there is no learned model, or a pointer cannot be read.
            ModelError: the default model cannot be loaded.
            SettingsError: the settings name a default model that is not there.
        """

        async def load(version: str | None) -> tuple[Encoder, Path] | None:
            return await self._pool.run(self._load_base, version)

        found = await model_of_all(await self._pointer(AllAgents(agent.tenant)), load)
        if found is None:
            message = "no learned model serves: there is nothing to start from"
            raise FailedPrecondition("NOT_CONFIGURED", message)
        base, folder = found

        async def load_own(version: str) -> ServedModel | None:
            return await self._pool.run(self._load_own, version, base, folder)

        try:
            pointer = await self._pointer(agent)
        except FailedPrecondition:
            pointer = Pointer()  # the reranker serves such an agent what all agents get
        return await model_of_agent(pointer, load_own) or ServedModel(base, Parameters(base), folder, None)

    def copy(self, served: ServedModel) -> Encoder:
        """Return a copy of the served model in its own memory.

        Raises:
            ModelError: it cannot be loaded.
        """
        return self._load(served.folder, served.parameters.model.version)

    async def _pointer(self, scope: Scope) -> Pointer:
        try:
            return await self._promotions.pointer(scope)
        except ManifestError as error:
            message = f"what serves cannot be read: {error}"
            raise FailedPrecondition("DAMAGED_MODEL", message) from None

    def _load_base(self, version: str | None) -> tuple[Encoder, Path] | None:
        if version is not None:
            return self._versions.full(version), self._folder(version)
        if self._default is None:
            return None
        folder, name = self._default()
        return self._load(folder, name), folder

    def _folder(self, version: str) -> Path:
        return self._store.verified(version)[0]

    def _load_own(self, version: str, base: Encoder, folder: Path) -> ServedModel | None:
        manifest = self._versions.manifest(version)
        if not manifest.lineage.applies_to(base.version):
            return None
        if manifest.lineage.kind is Kind.FULL:
            model = self._versions.full(version)
            return ServedModel(base, Parameters(model), self._folder(version), manifest)
        adapter = self._versions.adapter(version, base)
        return ServedModel(base, Parameters(base, adapter), folder, manifest)

    def _load(self, folder: Path, version: str) -> Encoder:
        return self._loader.full(folder, version, provenance="", created_at=datetime.now(UTC))
