"""Models that run in this process. Needs ``torch`` and ``transformers``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers.utils import logging as transformers_logging

from meshkit import models
from meshkit.compute import ComputePool
from meshkit.errors import InvalidField, NotFound
from meshkit.placement import DeviceError
from meshkit.settings import SettingsError, variable
from services.generator.backends.in_process import InProcessModel
from services.generator.hosts.host import HostedModel
from services.generator.prompts import TemplateLibrary
from services.generator.runtime.assembly import EngineOptions, assemble
from services.generator.runtime.engine import LanguageEngine
from services.generator.settings import GeneratorSettings, ModelSource


class InProcessHost:
    """A :class:`~services.generator.hosts.host.Host`: loads every model into this process."""

    def __init__(self, settings: GeneratorSettings, templates: TemplateLibrary) -> None:
        self._settings = settings
        self._templates = templates
        self._pool = ComputePool(settings.workers, "generator")
        self._engines: list[LanguageEngine] = []

    async def start(self) -> Sequence[HostedModel]:
        """Loads every model, the default first.

        Raises:
            SettingsError: a model cannot be had; one line that names the setting.
        """
        # The library's own progress bars and log lines go where every other line goes.
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        transformers_logging.disable_default_handler()
        transformers_logging.enable_propagation()
        cores = os.cpu_count() or 1
        torch.set_num_threads(self._settings.threads or max(1, cores // self._settings.workers))
        self._engines = await self._pool.run(self._load)
        interval_s = self._settings.delta_interval_ms / 1000
        return [
            HostedModel(InProcessModel(engine, self._pool, interval_s=interval_s), engine.statistics)
            for engine in self._engines
        ]

    async def stop(self) -> None:
        """Ends the threads."""
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
        try:
            return assemble(name, self._options(), self._templates)
        except models.ModelError as error:
            without = variable(self._settings, "bundled")
            raise SettingsError(f"{error}; {without}=false serves without {name}") from None

    def _load_model(self, source: ModelSource) -> LanguageEngine:
        settings = self._settings
        where = f"{variable(settings, 'models')}: model {source.name!r}"
        options = replace(
            self._options(),
            path=source.path,
            engine=source.engine,
            template=source.template,
            instruction=source.instruction,
        )
        try:
            return assemble(source.name, options, self._templates)
        except DeviceError as error:
            raise SettingsError(f"{variable(settings, 'device')}={settings.device!r}: {error}") from None
        except models.DownloadsOffError as error:
            allow = variable(settings, "allow_download")
            raise SettingsError(f"{where}: {error}; {allow}=true fetches it") from None
        except (models.ModelError, NotFound, InvalidField) as error:
            raise SettingsError(f"{where}: {error}") from None

    def _options(self) -> EngineOptions:
        settings = self._settings
        return EngineOptions(
            device=settings.device,
            dtype=settings.dtype,
            max_input_tokens=settings.max_input_tokens,
            batch_tokens=settings.batch_tokens,
            max_rows=settings.max_rows,
            cache_bytes=settings.cache_bytes,
            workers=settings.workers,
            allow_download=settings.allow_download,
        )
