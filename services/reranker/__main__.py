"""Runs the reranker: ``python -m services.reranker``; settings from ``RAGMESH_RERANKER_…``."""

from __future__ import annotations

import sys

from meshkit import logs
from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.server import Registration, run, serve
from meshkit.settings import SettingsError, load, variable
from meshkit.telemetry import Telemetry
from ragmesh.reranker.v1.feedback_service_pb2_grpc import add_FeedbackServiceServicer_to_server
from ragmesh.reranker.v1.reranker_service_pb2_grpc import add_RerankerServiceServicer_to_server
from services.reranker.backends.cross_encoder import (
    CrossEncoderReranker,
    ModelError,
    NoCrossEncoder,
    PairScorer,
)
from services.reranker.backends.rankrag import RankRag
from services.reranker.backends.unranked import Unranked
from services.reranker.clients import RelevanceClient
from services.reranker.domain import ServedModel
from services.reranker.engine import Engine
from services.reranker.ports import Reranker
from services.reranker.servicer import (
    FEEDBACK_SERVICE,
    RERANKER_SERVICE,
    FeedbackServicer,
    RerankerServicer,
)
from services.reranker.settings import RerankerSettings


class RerankerService:
    """Everything of one reranker process, put together; also its lifecycle.

    Args:
        settings: the settings.
        telemetry: for the calls to the generator.
    """

    def __init__(self, settings: RerankerSettings, telemetry: Telemetry) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._pool = ComputePool(1, "reranker")
        self._generator: RelevanceClient | None = None
        self._cross_encoder: CrossEncoderReranker | None = None
        self._servicer = RerankerServicer(Admission(settings.max_work, "passages"))
        self._feedback = FeedbackServicer()
        self.registrations = [
            Registration(add_RerankerServiceServicer_to_server, self._servicer, RERANKER_SERVICE),
            Registration(add_FeedbackServiceServicer_to_server, self._feedback, FEEDBACK_SERVICE),
        ]

    async def start(self) -> None:
        """Opens the channel to the generator and loads the cross-encoder, if one is set.

        Raises:
            SettingsError: the cross-encoder cannot be had; one line that names the setting.
        """
        settings = self._settings
        self._generator = RelevanceClient(
            settings.generator_target,
            model=settings.rankrag_model,
            max_message_bytes=settings.max_message_bytes,
            telemetry=self._telemetry,
        )
        cross_encoder: Reranker = NoCrossEncoder(variable(settings, "cross_encoder"))
        if settings.cross_encoder:
            scorer = await self._pool.run(self._load)
            cross_encoder = self._cross_encoder = CrossEncoderReranker(
                scorer, self._pool, max_delay_s=settings.batch_delay_ms / 1000
            )
            self._feedback.open([ServedModel(scorer.version, f"loaded from {settings.cross_encoder}")])
        elif settings.default_reranker == cross_encoder.name:
            raise SettingsError(
                f"{variable(settings, 'default_reranker')}={settings.default_reranker} needs "
                f"{variable(settings, 'cross_encoder')}: a cross-encoder's folder or hub name"
            )
        rerankers: list[Reranker] = [RankRag(self._generator), cross_encoder, Unranked()]
        rerankers.sort(key=lambda one: one.name != settings.default_reranker)
        self._servicer.open(Engine(rerankers))

    async def stop(self) -> None:
        """Closes the channel and ends the thread."""
        if self._cross_encoder is not None:
            await self._cross_encoder.close()
        if self._generator is not None:
            await self._generator.close()
        self._pool.close()

    def _load(self) -> PairScorer:
        settings = self._settings
        if settings.threads is not None:
            import torch

            torch.set_num_threads(settings.threads)
        try:
            return PairScorer.load(
                settings.cross_encoder,
                device=settings.device,
                dtype=settings.dtype,
                max_length=settings.max_length,
                batch_size=settings.batch_size,
                allow_download=settings.allow_download,
            )
        except ModelError as error:
            raise SettingsError(f"{variable(settings, 'cross_encoder')}: {error}") from error


async def main() -> None:
    """Serves until told to stop."""
    settings = load(RerankerSettings)
    logs.configure("reranker", settings)
    telemetry = Telemetry.from_settings("reranker", settings)
    service = RerankerService(settings, telemetry)
    await serve("reranker", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
