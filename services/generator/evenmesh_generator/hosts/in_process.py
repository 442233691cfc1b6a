"""Run models in this process. Needs ``torch``, and ``transformers`` for all but the bundled model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from evenmesh_generator.backends.in_process import InProcessModel
from evenmesh_generator.hosts.source_errors import naming
from evenmesh_generator.ports import HostedModel
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.runtime.assembly import assemble
from evenmesh_generator.runtime.engine import LanguageEngine
from evenmesh_generator.runtime.options import EngineOptions
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.compute import model_files as models
from evenmesh_kit.compute.devices import DeviceError
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.settings import SettingsError, variable


class InProcessHost:
    """Loads every model into this process.

    Attributes:
        places: none: nothing is asked of another server.
    """

    places: Final[tuple[TenantPlaces, ...]] = ()

    def __init__(self, settings: GeneratorSettings, templates: TemplateLibrary) -> None:
        self._settings = settings
        self._templates = templates
        self._pool = ComputePool(1, "generator-loading")
        self._engines: list[LanguageEngine] = []

    async def start(self) -> Sequence[HostedModel]:
        """Load every model, the default first.

        Raises:
            SettingsError: a model cannot be had; one line that names the setting.
        """
        cores = os.cpu_count() or 1
        torch.set_num_threads(self._settings.threads or max(1, cores // self._settings.workers))
        self._engines = await self._pool.run(self._load)
        interval_s = self._settings.delta_interval_ms / 1000
        return [InProcessModel(engine, interval_s=interval_s) for engine in self._engines]

    async def stop(self) -> None:
        """Stop the threads."""
        for engine in self._engines:
            engine.close()
        self._pool.close()

    def _load(self) -> list[LanguageEngine]:
        sources = {source.name: source for source in self._settings.models}
        return [
            self._load_model(sources[name]) if name in sources else self._load_bundled(name)
            for name in self._settings.names
        ]

    def _load_bundled(self, name: str) -> LanguageEngine:
        settings = self._settings
        try:
            return assemble(name, self._options(), self._templates)
        except DeviceError as error:
            raise SettingsError(f"{variable(settings, 'device')}={settings.device!r}: {error}") from None
        except models.ModelError as error:
            without = variable(self._settings, "bundled")
            raise SettingsError(f"{error}; {without}=false serves without {name}") from None

    def _load_model(self, source: ModelSource) -> LanguageEngine:
        settings = self._settings
        options = replace(
            self._options(),
            path=source.path,
            engine=source.engine,
            template=source.template,
            instruction=source.instruction,
        )
        try:
            with naming(settings, source):
                return assemble(source.name, options, self._templates)
        except DeviceError as error:
            raise SettingsError(f"{variable(settings, 'device')}={settings.device!r}: {error}") from None

    def _options(self) -> EngineOptions:
        settings = self._settings
        return EngineOptions(
            device=settings.device,
            require_gpu=settings.require_gpu,
            dtype=settings.dtype,
            max_input_tokens=settings.max_input_tokens,
            batch_tokens=settings.batch_tokens,
            max_rows=settings.max_rows,
            cache_bytes=settings.cache_bytes,
            state_bytes=settings.state_bytes,
            chunk_tokens=settings.chunk_tokens,
            conversions=settings.ctranslate2_home,
            workers=settings.workers,
            allow_download=settings.allow_download,
            cpu_engine=settings.cpu_engine,
            parallel=settings.parallel,
            home=settings.home,
        )
