"""Runs the generator: ``python -m services.generator``; settings from ``RAGMESH_GENERATOR_…``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import torch
from transformers.utils import logging as transformers_logging

from meshkit import logs, models
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import InvalidField, NotFound
from meshkit.placement import DeviceError
from meshkit.server import Registration, run, serve
from meshkit.settings import SettingsError, load, variable
from meshkit.telemetry import Telemetry
from ragmesh.generator.v1.generator_service_pb2_grpc import add_GeneratorServiceServicer_to_server
from services.generator.backends.in_process import InProcessModel
from services.generator.engine import Generator
from services.generator.prompts import TemplateLibrary
from services.generator.runtime.assembly import EngineOptions, assemble
from services.generator.runtime.engine import LanguageEngine
from services.generator.servicer import NAME, GeneratorServicer
from services.generator.settings import GeneratorSettings, ModelSource


class GeneratorService:
    """Everything of one generator process, put together; also its lifecycle.

    Args:
        settings: the settings.
    """

    def __init__(self, settings: GeneratorSettings) -> None:
        self._settings = settings
        self._templates = TemplateLibrary.bundled()
        self._pool = ComputePool(settings.workers, "generator")
        self._codec_pool = ComputePool(1, "generator-codec")
        self._engines: list[LanguageEngine] = []
        self._servicer = GeneratorServicer(Admission(settings.max_work, "tokens"), self._codec_pool)
        self.registrations = [Registration(add_GeneratorServiceServicer_to_server, self._servicer, NAME)]

    async def start(self) -> None:
        """Loads every model.

        Raises:
            SettingsError: a model cannot be had; one line that names the setting.
        """
        cores = os.cpu_count() or 1
        torch.set_num_threads(self._settings.threads or max(1, cores // self._settings.workers))
        self._engines = await self._pool.run(self._load)
        interval_s = self._settings.delta_interval_ms / 1000
        in_process = [InProcessModel(engine, self._pool, interval_s=interval_s) for engine in self._engines]
        self._servicer.open(Generator(in_process, self._templates))

    async def stop(self) -> None:
        """Ends the threads."""
        for engine in self._engines:
            engine.close()
        self._pool.close()
        self._codec_pool.close()

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
            self._options(), path=source.path, template=source.template, instruction=source.instruction
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
            workers=settings.workers,
            allow_download=settings.allow_download,
        )


async def main() -> None:
    """Serves until told to stop."""
    settings = load(GeneratorSettings)
    logs.configure("generator", settings)
    # The library's own progress bars and log lines go where every other line goes, as JSON.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    service = GeneratorService(settings)
    telemetry = Telemetry.from_settings("generator", settings)
    await serve("generator", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
