"""Run the generator: ``python -m evenmesh_generator``; settings from ``EVENMESH_GENERATOR_…``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from evenmesh.generator.v1.generator_service_pb2_grpc import add_GeneratorServiceServicer_to_server
from evenmesh_generator.engine import CallLimit, Generator
from evenmesh_generator.hosts.source_errors import check_files
from evenmesh_generator.metrics import GeneratorMetrics
from evenmesh_generator.prompts import TemplateError, TemplateLibrary
from evenmesh_generator.servicer import NAME, GeneratorServicer
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.admission.metrics import AdmissionMetrics
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.process.serving import run_service
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.server import Registration, Service
from evenmesh_kit.settings import SettingsError, variable
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Spans

if TYPE_CHECKING:
    from evenmesh_generator.hosts.in_process import InProcessHost
    from evenmesh_generator.hosts.openai import OpenAiHost
    from evenmesh_generator.hosts.triton import TritonHost


_BRINGS: Final = {
    "in-process": (
        "in a checkout, pip install ./models './services/generator[models]' "
        "(images: a VARIANT other than remote)"
    ),
    "triton": "in a checkout, pip install './services/generator[triton]'",
    "openai": "in a checkout, pip install ./services/generator",
}
"""What brings the packages of each engine."""


class GeneratorService(Service):
    """Builds the parts of one generator process, and starts and stops them.

    Attributes:
        registrations: what it serves.
        readiness: whether its default model can answer.

    Args:
        settings: the settings.
        telemetry: what is recorded of answers and models.
    """

    def __init__(self, settings: GeneratorSettings, telemetry: Telemetry | None = None) -> None:
        self._templates = _templates(settings)
        self._limit = CallLimit(settings.max_call_tokens, variable(settings, "max_call_tokens"))
        self.readiness = Readiness()
        telemetry = telemetry or Telemetry.disabled()
        self._host = _host(settings, self._templates, self.readiness, Spans(telemetry))
        self._codec_pool = TenantPool(1, "generator-codec")
        self._metrics = GeneratorMetrics(telemetry)
        admission = Admission.from_settings(settings, "tokens")
        AdmissionMetrics(telemetry, admission)
        self._servicer = GeneratorServicer(admission, self._codec_pool, self._metrics, Spans(telemetry))
        self.registrations = [Registration(add_GeneratorServiceServicer_to_server, self._servicer, NAME)]

    async def start(self) -> None:
        """Start every model.

        Raises:
            SettingsError: a model cannot be had; one line that names the setting.
        """
        models = await self._host.start()
        for model in models:
            self._metrics.watch(model.describe().name, model.statistics)
        for places in self._host.places:
            self._metrics.watch_places(places)
        self._servicer.open(Generator(models, self._templates, self._limit))

    async def stop(self) -> None:
        """Release the models and stop the threads."""
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
) -> InProcessHost | OpenAiHost | TritonHost:
    # Each host imports libraries that the others do without.
    try:
        if settings.engine == "triton":
            from evenmesh_generator.hosts.triton import TritonHost

            return TritonHost(settings, templates, readiness, spans)
        if settings.engine == "openai":
            from evenmesh_generator.hosts.openai import OpenAiHost

            return OpenAiHost(settings, templates, readiness, spans)
        check_files(settings)  # first: PyTorch takes seconds to import
        from evenmesh_generator.hosts.in_process import InProcessHost

        return InProcessHost(settings, templates)
    except ModuleNotFoundError as error:
        engine, brings = variable(settings, "engine"), _BRINGS[settings.engine]
        raise SettingsError(
            f"{engine}={settings.engine} needs {error.name}, which is not installed: {brings}; "
            f"{engine}=openai asks servers that have the models"
        ) from None


if __name__ == "__main__":
    sys.exit(run_service("generator", GeneratorSettings, GeneratorService))
