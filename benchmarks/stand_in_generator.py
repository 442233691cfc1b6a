"""The real generator service with a model that answers at once, so that only the service itself is timed."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence

from benchmarks import shapes
from meshkit import logs
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import MeshError
from meshkit.server import Registration, run, serve
from meshkit.settings import load
from meshkit.spans import Spans
from meshkit.telemetry import Telemetry
from ragmesh.generator.v1.generator_service_pb2_grpc import add_GeneratorServiceServicer_to_server
from services.generator.domain import (
    Answer,
    Augmentation,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    RelevanceRequest,
)
from services.generator.engine import Generator
from services.generator.metrics import GeneratorMetrics
from services.generator.ports import Cancellation
from services.generator.prompts import TemplateLibrary
from services.generator.servicer import NAME, GeneratorServicer
from services.generator.settings import GeneratorSettings

_ANSWER = Answer("token " * shapes.TOKENS, FinishReason.STOP, 900, shapes.TOKENS, -12.5)


class StandIn:
    """A model of no cost: the same 64 tokens for every question, one delta a token."""

    def describe(self) -> ModelDescription:
        return ModelDescription(
            name="stand-in",
            version="v1",
            engine="stand-in",
            architecture="none",
            device="cpu",
            dtype="none",
            scores_relevance=True,
            max_input_tokens=2**20,
            max_new_tokens=4096,
            augmentations=(Augmentation.IN_PROMPT, Augmentation.RETRIEVAL_FREE),
        )

    @property
    def up(self) -> bool:
        return True

    async def generate_stream(
        self, request: GenerationRequest, cancel: Cancellation
    ) -> AsyncGenerator[str | Answer, None]:
        for _ in range(shapes.TOKENS):
            yield "token "
        yield _ANSWER

    async def generate_batch(
        self, requests: Sequence[GenerationRequest], cancel: Cancellation
    ) -> list[Answer | MeshError]:
        return [_ANSWER for _ in requests]

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        return [1 / (1 + at) for at in range(len(request.passages))]


class _Service:
    """Lifecycle of the service around the stand-in."""

    def __init__(self, settings: GeneratorSettings, model: StandIn, telemetry: Telemetry) -> None:
        self._model = model
        self._codec_pool = ComputePool(1, "generator-codec")
        self._servicer = GeneratorServicer(
            Admission(settings.max_work, "tokens"),
            self._codec_pool,
            GeneratorMetrics(telemetry),
            Spans(telemetry),
        )
        self.registrations = [Registration(add_GeneratorServiceServicer_to_server, self._servicer, NAME)]

    async def start(self) -> None:
        self._servicer.open(Generator([self._model], TemplateLibrary.bundled()))

    async def stop(self) -> None:
        self._codec_pool.close()


async def main(model: StandIn | None = None) -> None:
    """Serves until told to stop, with another model if it is given one."""
    settings = load(GeneratorSettings)
    logs.configure("generator", settings)
    telemetry = Telemetry.from_settings("generator", settings)
    service = _Service(settings, model or StandIn(), telemetry)
    await serve("generator", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
