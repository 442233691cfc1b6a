"""The real generator service with a model that answers at once, so that only the service itself is timed."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from functools import partial

from benchmarks import shapes
from benchmarks.stand_in import StandInService, serve_stand_in
from evenmesh.generator.v1.generator_service_pb2_grpc import add_GeneratorServiceServicer_to_server
from evenmesh_generator.domain import (
    Answer,
    Augmentation,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    RelevanceRequest,
)
from evenmesh_generator.engine import Generator
from evenmesh_generator.metrics import GeneratorMetrics
from evenmesh_generator.ports import Cancellation
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.servicer import NAME, GeneratorServicer
from evenmesh_generator.settings import GeneratorSettings
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.process.serving import run
from evenmesh_kit.rpc.server import Registration
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Spans

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

    async def generate(self, request: GenerationRequest, cancel: Cancellation) -> Answer:
        return _ANSWER

    async def score_relevance(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        return [1 / (1 + at) for at in range(len(request.passages))]


async def main(model: StandIn | None = None) -> None:
    """Serve until stopped, with another model if it is given one."""

    def around(settings: GeneratorSettings, telemetry: Telemetry, pool: TenantPool) -> StandInService:
        admission = Admission(settings.max_work, "tokens")
        servicer = GeneratorServicer(admission, pool, GeneratorMetrics(telemetry), Spans(telemetry))
        registration = Registration(add_GeneratorServiceServicer_to_server, servicer, NAME)
        generator = Generator([model or StandIn()], TemplateLibrary.bundled())
        return StandInService([registration], partial(servicer.open, generator), pool)

    await serve_stand_in("generator", GeneratorSettings, around)


if __name__ == "__main__":
    sys.exit(run(main))
