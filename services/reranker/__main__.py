"""Runs the reranker: ``python -m services.reranker``; settings from ``RAGMESH_RERANKER_…``."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from meshkit import logs, models
from meshkit.admission import Admission
from meshkit.admission_metrics import AdmissionMetrics
from meshkit.compute import ComputePool
from meshkit.errors import FailedPrecondition, Unavailable
from meshkit.server import Registration, ServerStartError, run, serve
from meshkit.settings import SettingsError, load, variable
from meshkit.telemetry import Telemetry
from ragmesh.reranker.v1.feedback_service_pb2_grpc import add_FeedbackServiceServicer_to_server
from ragmesh.reranker.v1.reranker_service_pb2_grpc import add_RerankerServiceServicer_to_server
from services.reranker.backends.cross_encoder import CrossEncoderReranker
from services.reranker.backends.rankrag import RankRag
from services.reranker.backends.sql.agents import SqlAgentRegistry
from services.reranker.backends.sql.database import Database
from services.reranker.backends.sql.feedback import SqlFeedbackStore, now_us
from services.reranker.backends.sql.served import SqlServedStore
from services.reranker.backends.sql.trainings import SqlTrainingLog
from services.reranker.backends.unranked import Unranked
from services.reranker.clients import GeneratorClient
from services.reranker.engine import Reranking
from services.reranker.feedback.domain import Limits
from services.reranker.feedback.intake import FeedbackIntake
from services.reranker.feedback.quality import Rules
from services.reranker.feedback.retention import Retention
from services.reranker.feedback.served import ServedRankings
from services.reranker.feedback.servicer import NAME as FEEDBACK
from services.reranker.feedback.servicer import FeedbackServicer, FeedbackServices
from services.reranker.metrics import FeedbackLook, RerankerMetrics
from services.reranker.models.governor import Governor
from services.reranker.models.store import ModelStore
from services.reranker.origin import origin_of
from services.reranker.ports import LoadedModel, ModelLoader, Reranker
from services.reranker.servicer import RERANKER, RerankerServicer
from services.reranker.settings import RerankerSettings

_MB: Final = 10**6


class RerankerService:
    """Everything of one reranker process, put together; also its lifecycle.

    Args:
        settings: the settings.
        telemetry: what is recorded of requests, models and feedback, and of calls to the generator.
    """

    def __init__(self, settings: RerankerSettings, telemetry: Telemetry) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self._metrics = RerankerMetrics(telemetry)
        self._pool = ComputePool(2, "reranker")
        self._codec_pool = ComputePool(1, "reranker-codec")
        self._loading_pool = ComputePool(2, "reranker-loading")
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._database = Database(settings.database(), lock_timeout_s=settings.lock_timeout_s)
        self._agents = SqlAgentRegistry(self._database)
        served_store = SqlServedStore(self._database)
        limits = Limits(
            settings.feedback_per_day,
            settings.feedback_total,
            settings.feedback_agents,
            settings.feedback_registered_only,
        )
        rules = Rules(constant_run=settings.feedback_constant_run)
        store = SqlFeedbackStore(self._database, limits=limits, rules=rules)
        self._served = (
            ServedRankings(served_store, capacity=settings.served_memory, clock=now_us)
            if settings.feedback_served_only
            else None
        )
        self._intake = FeedbackIntake(
            store,
            limits=limits,
            commit_size=settings.feedback_commit_size,
            max_in_flight=settings.feedback_in_flight,
            served=self._served,
            clock=time.monotonic,
            on_outcomes=self._metrics.fed,
        )
        self._look = FeedbackLook(telemetry, store.summary)
        self._retention = Retention(
            store,
            feedback_days=settings.feedback_retention_days,
            served=served_store,
            served_days=settings.served_retention_days,
            clock=now_us,
        )
        self._governor = Governor(
            ModelStore(settings.home / "reranker" / "models"),
            loader=self._loader,
            pool=self._loading_pool,
            memory_bytes=settings.agent_memory_mb * _MB,
            registered=self._agents.registered,
            no_model=(
                f"the reranker 'cross-encoder' has no model: set {variable(settings, 'cross_encoder')} to "
                "'bundled', a model's folder or its hub name, or promote a version"
            ),
            poll_s=settings.model_poll_s,
            keep_versions=settings.keep_versions,
        )
        admission = Admission(settings.max_work, "pairs", queue_s=settings.queue_s)
        AdmissionMetrics(telemetry, admission)
        self._servicer = RerankerServicer(admission, self._codec_pool)
        self._metrics.watch_model(self._governor.serving)
        telemetry.freshness.watch("models", self._governor)
        services = FeedbackServices(
            self._intake,
            store,
            self._agents,
            SqlTrainingLog(self._database),
            self._governor,
            settings.max_registered_agents,
        )
        feedback = FeedbackServicer(services, self._codec_pool, clock=now_us)
        self.registrations = [
            Registration(add_RerankerServiceServicer_to_server, self._servicer, RERANKER),
            Registration(add_FeedbackServiceServicer_to_server, feedback, FEEDBACK),
        ]

    async def start(self) -> None:
        """Opens the database, loads what is served, and opens the channel to the generator.

        Raises:
            SettingsError: the cross-encoder cannot be had; one line that names the setting.
            ServerStartError: the database cannot be used.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self._settings
        await self._open_database()
        self._closing.append(self._database.close)
        await self._governor.start(await self._origin())
        self._closing.append(self._governor.close)
        if settings.default_reranker == "cross-encoder" and not self._governor.has_model:
            needs = f"{variable(settings, 'cross_encoder')} or a version that was promoted"
            raise SettingsError(f"{variable(settings, 'default_reranker')}=cross-encoder needs {needs}")
        self._closing.append(self._intake.close)
        if self._served is not None:
            self._served.start()
            self._closing.append(self._served.close)
        self._retention.start()
        self._closing.append(self._retention.close)
        self._look.start()
        self._closing.append(self._look.close)
        generator = GeneratorClient(
            settings.generator_target,
            model=settings.rankrag_model,
            model_setting=variable(settings, "rankrag_model"),
            template=settings.rankrag_template,
            template_setting=variable(settings, "rankrag_template"),
            max_message_bytes=settings.max_message_bytes,
            telemetry=self._telemetry,
        )
        self._closing.append(generator.close)
        cross_encoder = CrossEncoderReranker(
            self._governor,
            pool=self._pool,
            batch_size=settings.batch_size,
            batch_tokens=settings.batch_tokens,
            max_delay_s=settings.batch_delay_ms / 1000,
            metrics=self._metrics,
        )
        self._closing.append(cross_encoder.close)
        rerankers: dict[str, Reranker] = {
            "cross-encoder": cross_encoder,
            "rankrag": RankRag(generator),
            "none": Unranked(),
        }
        recorded = {name: self._metrics.reranker(name, one) for name, one in rerankers.items()}
        self._servicer.open(Reranking(recorded, settings.default_reranker), self._served)

    async def stop(self) -> None:
        """Stores what waits, closes what is open, the last opened first, and ends the threads."""
        while self._closing:
            await self._closing.pop()()
        for pool in (self._pool, self._codec_pool, self._loading_pool):
            pool.close()

    async def _open_database(self) -> None:
        try:
            await self._database.open()
        except Unavailable as error:
            name = variable(self._settings, "database_url" if self._settings.database_url else "home")
            raise ServerStartError(f"{error.message}: set {name} to a place that can be written") from error

    async def _loader(self) -> ModelLoader:
        # Only a server with a cross-encoder pays for importing torch and sentence-transformers.
        from meshkit.placement import DeviceError
        from services.reranker.backends.encoder import EncoderLoader

        settings = self._settings
        try:
            return await self._loading_pool.run(EncoderLoader.from_settings, settings)
        except DeviceError as error:
            said = f"{variable(settings, 'device')}={settings.device!r}: {error}"
            raise FailedPrecondition("NO_DEVICE", said) from None

    async def _origin(self) -> LoadedModel | None:
        """The cross-encoder that the settings name."""
        settings = self._settings
        if not settings.cross_encoder:
            return None
        setting = variable(settings, "cross_encoder")
        try:
            loader = await self._loader()
            origin: LoadedModel = await self._loading_pool.run(_load_origin, loader, settings)
        except FailedPrecondition as error:
            raise SettingsError(error.message) from None
        except models.ModelError as error:
            raise SettingsError(f"{setting}: {error}") from None
        return origin


def _load_origin(loader: ModelLoader, settings: RerankerSettings) -> LoadedModel:
    folder, version = origin_of(settings)
    written_at = datetime.fromtimestamp(
        max(path.stat().st_mtime for path in folder.glob("*.safetensors")), UTC
    )
    provenance = f"loaded from {Path(settings.cross_encoder).name}"
    return loader.full(folder, version, provenance=provenance, created_at=written_at)


async def main() -> None:
    """Serves until told to stop."""
    settings = load(RerankerSettings)
    logs.configure("reranker", settings)
    telemetry = Telemetry.from_settings("reranker", settings)
    service = RerankerService(settings, telemetry)
    await serve("reranker", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
