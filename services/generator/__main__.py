"""Runs the generator: ``python -m services.generator``; settings from ``RAGMESH_GENERATOR_…``."""

from __future__ import annotations

import sys

from meshkit import logs
from meshkit.admission import Admission
from meshkit.admission_metrics import AdmissionMetrics
from meshkit.compute import ComputePool
from meshkit.readiness import Readiness
from meshkit.server import Registration, run, serve
from meshkit.settings import SettingsError, load, variable
from meshkit.spans import Spans
from meshkit.telemetry import Telemetry
from ragmesh.generator.v1.generator_service_pb2_grpc import add_GeneratorServiceServicer_to_server
from services.generator.engine import Generator
from services.generator.hosts.host import Host
from services.generator.metrics import GeneratorMetrics
from services.generator.prompts import TemplateError, TemplateLibrary
from services.generator.servicer import NAME, GeneratorServicer
from services.generator.settings import GeneratorSettings


class GeneratorService:
    """Everything of one generator process, put together; also its lifecycle.

    Attributes:
        registrations: what it serves.
        readiness: whether its default model can answer.

    Args:
        settings: the settings.
        telemetry: what is recorded of answers and models.
    """

    def __init__(self, settings: GeneratorSettings, telemetry: Telemetry | None = None) -> None:
        self._templates = _templates(settings)
        self.readiness = Readiness()
        telemetry = telemetry or Telemetry.disabled()
        self._host = _host(settings, self._templates, self.readiness, Spans(telemetry))
        self._codec_pool = ComputePool(1, "generator-codec")
        self._metrics = GeneratorMetrics(telemetry)
        admission = Admission(settings.max_work, "tokens", queue_s=settings.queue_s)
        AdmissionMetrics(telemetry, admission)
        self._servicer = GeneratorServicer(admission, self._codec_pool, self._metrics, Spans(telemetry))
        self.registrations = [Registration(add_GeneratorServiceServicer_to_server, self._servicer, NAME)]

    async def start(self) -> None:
        """Has every model run.

        Raises:
            SettingsError: a model cannot be had; one line that names the setting.
        """
        hosted = await self._host.start()
        for one in hosted:
            self._metrics.watch(one.model.describe().name, one.statistics)
        self._servicer.open(Generator([one.model for one in hosted], self._templates))

    async def stop(self) -> None:
        """Lets go of the models and ends the threads."""
        await self._host.stop()
        self._codec_pool.close()


def _templates(settings: GeneratorSettings) -> TemplateLibrary:
    if settings.templates is None:
        return TemplateLibrary.bundled()
    try:
        return TemplateLibrary.with_folder(settings.templates)
    except TemplateError as error:
        raise SettingsError(f"{variable(settings, 'templates')}: {error}") from None


def _host(
    settings: GeneratorSettings, templates: TemplateLibrary, readiness: Readiness, spans: Spans
) -> Host:
    # Each with libraries that the other does without.
    if settings.engine == "triton":
        from services.generator.hosts.triton import TritonHost

        return TritonHost(settings, readiness, spans)
    from services.generator.hosts.in_process import InProcessHost

    return InProcessHost(settings, templates)


async def main() -> None:
    """Serves until told to stop."""
    settings = load(GeneratorSettings)
    logs.configure("generator", settings)
    telemetry = Telemetry.from_settings("generator", settings)
    service = GeneratorService(settings, telemetry)
    await serve(
        "generator",
        settings,
        service.registrations,
        service,
        telemetry=telemetry,
        readiness=service.readiness,
    )


if __name__ == "__main__":
    sys.exit(run(main))
