"""What serves an agent now: found in the model store, and brought into memory to go on from."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from meshkit.errors import FailedPrecondition
from meshkit.placement import DeviceError, Placement
from meshkit.settings import SettingsError, variable
from services.reranker.backends.adapters import LowRankAdapter
from services.reranker.backends.encoder import Encoder, EncoderLoader
from services.reranker.domain import Agent, Everyone
from services.reranker.models.manifest import Kind, Manifest, ManifestError
from services.reranker.models.store import ModelStore
from services.reranker.online.settings import OnlineSettings
from services.reranker.origin import origin_of
from services.reranker.settings import RerankerSettings

Origin = Callable[[], tuple[Path, str]]
"""Folder and version of the model that serves while none is promoted."""


@dataclass(frozen=True, slots=True)
class Served:
    """What serves an agent.

    Attributes:
        base: version of the model that serves all agents of the tenant.
        folder: that model's folder.
        own: the agent's own version; None if it gets what all get.
    """

    base: str
    folder: Path
    own: Manifest | None

    @property
    def version(self) -> str:
        """The version that the agent's replies name."""
        return self.base if self.own is None else self.own.version


class Serving:
    """Finds what serves whom. Its methods read files and load models: call them in a thread.

    Args:
        store: the versions.
        origin: the model of the settings; None if they name none.
        loader: brings models into memory.
    """

    def __init__(self, store: ModelStore, origin: Origin | None, loader: EncoderLoader) -> None:
        self._store = store
        self._origin = origin
        self._loader = loader

    @classmethod
    def from_settings(
        cls, settings: OnlineSettings, reranker: RerankerSettings, store: ModelStore
    ) -> Serving:
        """For the reranker that has these settings; call it in a thread.

        Models compute in float32, which training needs and comparing should have.

        Raises:
            SettingsError: there is no such device.
        """
        torch.set_num_threads(settings.threads or os.cpu_count() or 1)
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            placement = Placement.choose(settings.device, "float32")
        except DeviceError as error:
            raise SettingsError(f"{variable(settings, 'device')}={settings.device!r}: {error}") from None
        origin = (lambda: origin_of(reranker)) if reranker.cross_encoder else None
        return cls(store, origin, EncoderLoader(placement))

    def find(self, agent: Agent) -> Served:
        """What serves an agent, as the pointers say and the reranker does.

        Raises:
            FailedPrecondition: there is no learned model, or it is damaged.
        """
        try:
            version = self._store.pointer(Everyone(agent.tenant)).serving
            if version is not None:
                folder, _ = self._store.verified(version)
            elif self._origin is not None:
                folder, version = self._origin()
            else:
                raise FailedPrecondition(
                    "NOT_CONFIGURED", "no learned model serves: there is nothing to go on from"
                )
        except ManifestError as error:
            raise FailedPrecondition(
                "DAMAGED_MODEL", f"what serves all agents cannot be read: {error}"
            ) from None
        return Served(version, folder, self._own(agent, version))

    def base(self, served: Served) -> Encoder:
        """The model that serves all agents.

        Raises:
            ModelError: it cannot be loaded.
        """
        return self._full(served.folder, served.base)

    def own(self, served: Served, base: Encoder) -> tuple[Encoder, LowRankAdapter | None]:
        """What serves the agent: a model, and changes to it if it has such.

        Raises:
            ModelError: it cannot be loaded.
        """
        if served.own is None:
            return base, None
        folder, _ = self._store.verified(served.own.version)
        if served.own.lineage.kind is Kind.FULL:
            return self._full(folder, served.own.version), None
        adapter = self._loader.adapter(folder, served.own.version, base)
        assert isinstance(adapter, LowRankAdapter)  # noqa: S101 - the loader's own
        return base, adapter

    def copy(self, served: Served) -> tuple[Path, Encoder]:
        """The agent's whole model, or else all agents', in memory of its own; and its folder.

        Raises:
            ModelError: it cannot be loaded.
        """
        folder, version = served.folder, served.base
        if served.own is not None and served.own.lineage.kind is Kind.FULL:
            folder, version = self._store.verified(served.own.version)[0], served.own.version
        return folder, self._full(folder, version)

    def _own(self, agent: Agent, base: str) -> Manifest | None:
        """The agent's own version if it serves; one that is damaged or changes another model does not."""
        try:
            version = self._store.pointer(agent).serving
            if version is None:
                return None
            _, manifest = self._store.verified(version)
        except ManifestError:
            return None
        return manifest if manifest.lineage.base in ("", base) else None

    def _full(self, folder: Path, version: str) -> Encoder:
        return self._loader.full(folder, version, provenance="", created_at=datetime.now(UTC))
