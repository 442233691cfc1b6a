"""Run the reranker: ``python -m evenmesh_reranker``; settings from ``EVENMESH_RERANKER_…``."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evenmesh.reranker.v1.feedback_service_pb2_grpc import add_FeedbackServiceServicer_to_server
from evenmesh.reranker.v1.reranker_service_pb2_grpc import add_RerankerServiceServicer_to_server
from evenmesh.wire.errors import FailedPrecondition, Unavailable
from evenmesh_kit.admission.metrics import AdmissionMetrics
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.admission.shares import TenantShares
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.devices import DeviceError
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.process.serving import run_service
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc.readiness import Readiness
from evenmesh_kit.rpc.server import Registration, Service
from evenmesh_kit.settings import SettingsError, variable
from evenmesh_kit.storage.opening import opened
from evenmesh_kit.storage.sql import now_us
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Spans
from evenmesh_reranker.backends import loading
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.backends.rankrag import RankRag
from evenmesh_reranker.backends.sql.agents import SqlAgentRegistry
from evenmesh_reranker.backends.sql.database import Database
from evenmesh_reranker.backends.sql.feedback import SqlFeedbackStore
from evenmesh_reranker.backends.sql.served import SqlServedStore
from evenmesh_reranker.backends.sql.trainings import SqlTrainingLog
from evenmesh_reranker.backends.unranked import Unranked
from evenmesh_reranker.domain import Fusion
from evenmesh_reranker.engine import Reranking
from evenmesh_reranker.feedback.domain import Limits
from evenmesh_reranker.feedback.intake import FeedbackIntake
from evenmesh_reranker.feedback.quality import QualityRules
from evenmesh_reranker.feedback.retention import Retention
from evenmesh_reranker.feedback.served import ServedRankings
from evenmesh_reranker.feedback.servicer import NAME as FEEDBACK
from evenmesh_reranker.feedback.servicer import FeedbackServicer
from evenmesh_reranker.metrics import FeedbackGauges, RerankerMetrics
from evenmesh_reranker.models import opening
from evenmesh_reranker.models.registry import ModelRegistry
from evenmesh_reranker.ports import Adapter, LoadedModel, ModelLoader, Reranker
from evenmesh_reranker.servicer import RERANKER, RerankerServicer
from evenmesh_reranker.settings import RerankerSettings

if TYPE_CHECKING:
    from evenmesh_reranker.backends.remote import RemoteReranker

_MB: Final = 10**6


class RerankerService(Service):
    """The parts of one reranker process and their lifecycle.

    Args:
        settings: the settings.
        telemetry: records requests, models and feedback, and calls to the generator and to model servers.

    Attributes:
        readiness: whether the model servers answer, if the default reranker is theirs.
    """

    def __init__(self, settings: RerankerSettings, telemetry: Telemetry) -> None:
        self._settings = settings
        self._telemetry = telemetry
        self.readiness = self._readiness = Readiness()
        self._metrics = RerankerMetrics(telemetry)
        self._pool = ComputePool(1 + (settings.parallel or usable_cores()), "reranker")
        self._codec_pool = TenantPool(1, "reranker-codec")
        self._loading_pool = ComputePool(2, "reranker-loading")
        self._closing: list[Callable[[], Awaitable[None]]] = []
        self._database = Database(settings.database(), lock_timeout_s=settings.lock_timeout_s)
        self._agents = SqlAgentRegistry(self._database)
        served_store = SqlServedStore(self._database, tenant_bytes=settings.served_tenant_mb * _MB)
        limits = Limits(
            settings.feedback_per_day,
            settings.feedback_total,
            settings.feedback_agents,
            settings.feedback_registered_only,
            settings.feedback_tenant_mb * _MB,
        )
        rules = QualityRules(constant_run=settings.feedback_constant_run)
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
            on_outcomes=self._metrics.recorded,
        )
        self._gauges = FeedbackGauges(telemetry, store.summary)
        self._retention = Retention(
            store,
            feedback_days=settings.feedback_retention_days,
            served=served_store,
            served_days=settings.served_retention_days,
            clock=now_us,
        )
        self._registry = ModelRegistry(
            opening.version_store(settings),
            promotions=opening.promotions(settings, self._database),
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
        admission = Admission.from_settings(settings, "pairs")
        self._generator_calls = Admission(
            settings.upstream_calls, "generator calls", share=settings.tenant_share
        )
        AdmissionMetrics(telemetry, admission, self._generator_calls)
        self._servicer = RerankerServicer(admission, self._codec_pool)
        self._metrics.watch_model(self._registry.serving)
        telemetry.reloads.watch("models", self._registry)
        feedback = FeedbackServicer(
            intake=self._intake,
            store=store,
            agents=self._agents,
            trainings=SqlTrainingLog(self._database),
            models=self._registry,
            max_agents=settings.max_registered_agents,
            exports=TenantShares(
                settings.max_tenant_exports, "exports", variable(settings, "max_tenant_exports")
            ),
            codec_pool=self._codec_pool,
            clock=now_us,
        )
        self.registrations = [
            Registration(add_RerankerServiceServicer_to_server, self._servicer, RERANKER),
            Registration(add_FeedbackServiceServicer_to_server, feedback, FEEDBACK),
        ]

    async def start(self) -> None:
        """Open the database, load the served model, and open the channel to the generator.

        Raises:
            SettingsError: the cross-encoder cannot be loaded, or a file for model servers cannot be used; one
                line that names the setting.
            ServerStartError: the database cannot be used.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        settings = self._settings
        await opened(settings, self._database.open)
        self._closing.append(self._database.close)
        try:
            await opening.adopt(settings, self._database)
            await self._registry.start(await self._default_model())
        except Unavailable as error:
            raise ServerStartError(settings.remedy(error)) from error
        self._closing.append(self._registry.close)
        if settings.default_reranker == "cross-encoder" and not self._registry.has_model:
            needs = f"{variable(settings, 'cross_encoder')} or a promoted version"
            raise SettingsError(f"{variable(settings, 'default_reranker')}=cross-encoder needs {needs}")
        self._closing.append(self._intake.close)
        if self._served is not None:
            self._served.start()
            self._closing.append(self._served.close)
        self._retention.start()
        self._closing.append(self._retention.close)
        self._gauges.start()
        self._closing.append(self._gauges.close)
        rankrag = RankRag(
            settings.generator_target,
            model=settings.rankrag_model,
            model_setting=variable(settings, "rankrag_model"),
            template=settings.rankrag_template,
            template_setting=variable(settings, "rankrag_template"),
            max_message_bytes=settings.max_message_bytes,
            calls=self._generator_calls,
            telemetry=self._telemetry,
        )
        self._closing.append(rankrag.close)
        cross_encoder = CrossEncoderReranker(
            self._registry,
            pool=self._pool,
            batch_size=settings.batch_size,
            batch_tokens=settings.batch_tokens,
            max_delay_s=settings.batch_delay_ms / 1000,
            max_tokens=settings.max_request_tokens,
            setting=variable(settings, "max_request_tokens"),
            metrics=self._metrics,
        )
        self._closing.append(cross_encoder.close)
        rerankers: dict[str, Reranker] = {
            "cross-encoder": cross_encoder,
            "rankrag": rankrag,
            "none": Unranked(),
        }
        if settings.remote_urls:
            rerankers["remote"] = await self._remote()
        recorded = {name: self._metrics.reranker(name, one) for name, one in rerankers.items()}
        self._servicer.open(Reranking(recorded, settings.default_reranker, self._codec_pool), self._served)

    async def stop(self) -> None:
        """Store queued feedback, close all parts, the last opened first, and end the threads."""
        while self._closing:
            await self._closing.pop()()
        for pool in (self._pool, self._codec_pool, self._loading_pool):
            pool.close()

    async def _remote(self) -> RemoteReranker:
        """Open the reranker on model servers; they may be away."""
        from evenmesh_reranker.backends.remote import RemoteReranker

        settings = self._settings

        def ready(serving: bool) -> None:
            self._readiness.ready = serving or settings.default_reranker != "remote"

        remote = RemoteReranker(
            settings.remote_client(spans=Spans(self._telemetry), tei=settings.remote_server == "tei"),
            server=settings.remote_server,
            model=settings.remote_model,
            scale=settings.remote_scores,
            scale_setting=variable(settings, "remote_scores"),
            batch_size=settings.remote_batch_size,
            batch_characters=settings.remote_batch_characters,
            batch_settings=" and ".join(
                variable(settings, name) for name in ("remote_batch_size", "remote_batch_characters")
            ),
            fusion=Fusion(settings.remote_fusion),
            check_s=settings.remote_check_s,
            ready=ready,
        )
        self._closing.append(remote.close)
        await remote.start()
        return remote

    async def _loader(self) -> ModelLoader[LoadedModel, Adapter]:
        settings = self._settings
        try:
            return await self._loading_pool.run(
                loading.loader,
                settings.device,
                settings.dtype,
                engine=settings.cpu_engine,
                threads=settings.threads,
                parallel=settings.parallel,
                conversions=Conversions.of_user(settings.home),
                max_length=settings.max_length,
                require_gpu=settings.require_gpu,
            )
        except DeviceError as error:
            message = f"{variable(settings, 'device')}={settings.device!r}: {error}"
            raise FailedPrecondition("NO_DEVICE", message) from None
        except EngineError as error:
            message = f"{variable(settings, 'cpu_engine')}={settings.cpu_engine!r}: {error}"
            raise FailedPrecondition("NO_ENGINE", message) from None
        except ModuleNotFoundError as error:
            raise FailedPrecondition("NO_PACKAGE", f"a cross-encoder {_needs(error)}") from None

    async def _default_model(self) -> LoadedModel | None:
        """Load the cross-encoder that the settings name."""
        settings = self._settings
        if not settings.cross_encoder:
            return None
        setting = variable(settings, "cross_encoder")
        try:
            loader = await self._loader()
            try:
                return await self._loading_pool.run(_load_default, loader, settings)
            except ModuleNotFoundError as error:
                raise FailedPrecondition("NO_PACKAGE", f"a cross-encoder {_needs(error)}") from None
        except FailedPrecondition as error:
            remedy = (
                f"; an empty {setting} loads none, with "
                f"{variable(settings, 'default_reranker')}=remote, rankrag or none"
            )
            raise SettingsError(error.message + remedy * (error.reason == "NO_PACKAGE")) from None
        except ModelError as error:
            raise SettingsError(f"{setting}: {error}") from None


def _needs(error: ModuleNotFoundError) -> str:
    """Return what a model needs, and what brings it."""
    return (
        f"needs {error.name}, which is not installed: in a checkout, pip install ./models "
        "'./services/reranker[models]' (images: a VARIANT other than remote)"
    )


def _load_default(loader: ModelLoader[LoadedModel, Adapter], settings: RerankerSettings) -> LoadedModel:
    # Imported where a model is loaded: it needs the extra `models`.
    from evenmesh_reranker.models.default_model import default_model

    folder, version = default_model(settings)
    written_at = datetime.fromtimestamp(
        max(path.stat().st_mtime for path in folder.glob("*.safetensors")), UTC
    )
    provenance = f"loaded from {Path(settings.cross_encoder).name}"
    return loader.full(folder, version, provenance=provenance, created_at=written_at)


if __name__ == "__main__":
    sys.exit(run_service("reranker", RerankerSettings, RerankerService))
