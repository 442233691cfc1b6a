"""Run the orchestrator: ``python -m evenmesh_orchestrator``."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc
from evenmesh.wire.errors import Unavailable
from evenmesh_kit.admission.metrics import AdmissionMetrics
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.process.serving import run_service
from evenmesh_kit.process.start import ServerStartError
from evenmesh_kit.rpc.server import Registration, Service
from evenmesh_kit.settings import variable
from evenmesh_kit.storage.tenant_log import LogSettingError, RedisLog
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Spans
from evenmesh_orchestrator import codec, tracing
from evenmesh_orchestrator.asks.budgets import PipelineConfig
from evenmesh_orchestrator.asks.pipeline import Pipeline
from evenmesh_orchestrator.asks.request import Defaults
from evenmesh_orchestrator.clients import EvaluatorClient, GeneratorClient, RerankerClient, RetrieverClient
from evenmesh_orchestrator.conversations.memory import MemoryConversationStore
from evenmesh_orchestrator.conversations.store import ConversationStore
from evenmesh_orchestrator.conversations.turns import TurnHandler
from evenmesh_orchestrator.domain import Stage
from evenmesh_orchestrator.metrics import AskMetrics, RecordedOutbox, RecordedPipeline
from evenmesh_orchestrator.observations.log import LogReceiver
from evenmesh_orchestrator.observations.outbox import Outbox
from evenmesh_orchestrator.observations.relay import OutboxRelay
from evenmesh_orchestrator.servicer import OrchestratorServicer
from evenmesh_orchestrator.settings import OrchestratorSettings
from evenmesh_orchestrator.upstreams import Upstreams

NAME = pb.DESCRIPTOR.services_by_name["OrchestratorService"].full_name
"""Full name of the service."""


def pipeline_config(settings: OrchestratorSettings) -> PipelineConfig:
    """Return the budgets and sizes of the settings."""
    return PipelineConfig(
        shares={Stage.RETRIEVE: settings.retrieve_share, Stage.RERANK: settings.rerank_share},
        closing_share=settings.closing_share,
        batch_size=settings.batch_size,
        batches_in_flight=settings.batches_in_flight,
        report_wait_s=settings.report_wait_s,
    )


def conversation_store(settings: OrchestratorSettings) -> ConversationStore:
    """Return the store of conversations that the settings name."""
    limits = settings.conversation_limits()
    if not settings.conversations_url:
        return MemoryConversationStore(limits)
    # SQLAlchemy takes its time and memory, so it is imported only where it is used.
    from evenmesh_kit.storage.sql_settings import with_driver
    from evenmesh_orchestrator.conversations.sql.store import SqlConversationStore

    url = with_driver(settings.conversations_url)
    return SqlConversationStore(url, limits, lease_s=settings.conversation_lease_s)


def observation_log(settings: OrchestratorSettings) -> LogReceiver | None:
    """Return the log that takes observations; None where the evaluator takes them.

    Raises:
        ServerStartError: the setting cannot be used.
    """
    if not settings.observation_log:
        return None
    name = variable(settings, "observation_log")
    most = settings.observation_log_entries
    try:
        log = RedisLog(settings.observation_log, "observations", max_entries=most, variable=name)
    except LogSettingError as error:
        raise ServerStartError(str(error)) from None
    return LogReceiver(log, max_message_bytes=settings.max_message_bytes)


class Orchestrator(Service):
    """One orchestrator process and its lifecycle. Create it in a running event loop.

    Args:
        settings: the settings.
        telemetry: records asks and calls to other services.
    """

    def __init__(self, settings: OrchestratorSettings, telemetry: Telemetry) -> None:
        self._settings = settings
        limits = {"max_message_bytes": settings.max_message_bytes}
        retriever = RetrieverClient.channel_to(settings.retriever_target, telemetry=telemetry, **limits)
        reranker = RerankerClient.channel_to(settings.reranker_target, telemetry=telemetry, **limits)
        generator = GeneratorClient.channel_to(settings.generator_target, telemetry=telemetry, **limits)
        evaluator = EvaluatorClient.channel_to(settings.evaluator_target, telemetry=telemetry, **limits)
        upstreams = Upstreams(settings, telemetry.meter)
        generator_client = GeneratorClient(generator, upstreams.generator)
        evaluator_client = EvaluatorClient(evaluator, upstreams.evaluator)
        self._channels = (retriever, reranker, generator, evaluator)
        self._pool = TenantPool(settings.compute_threads, "orchestrator")
        outbox = partial(RecordedOutbox, telemetry) if telemetry.enabled else Outbox
        encode = partial(codec.observation, with_text=settings.observe_text)
        self._log = observation_log(settings)
        self._relay = OutboxRelay(
            outbox(
                settings.outbox_file(),
                capacity=settings.outbox_capacity,
                max_bytes=settings.outbox_max_bytes,
                tenant_share=settings.outbox_tenant_share,
                flush=settings.outbox_flush,
            ),
            self._log or evaluator_client,
            tracing.encoder(encode) if telemetry.enabled else encode,
            max_attempts=settings.outbox_attempts,
        )
        config = pipeline_config(settings)
        pipeline = (
            partial(RecordedPipeline, AskMetrics(telemetry), Spans(telemetry))
            if telemetry.enabled
            else Pipeline
        )
        self._pipeline = pipeline(
            retriever=RetrieverClient(retriever, upstreams.retriever),
            reranker=RerankerClient(reranker, upstreams.reranker),
            generator=generator_client,
            observer=self._relay,
            config=config,
            pool=self._pool,
            votes=evaluator_client,
            balances=evaluator_client,
            models=generator_client,
        )
        self._conversations = conversation_store(settings)
        admission = Admission.from_settings(settings, "answers")
        AdmissionMetrics(telemetry, admission, *upstreams.calls)
        servicer = OrchestratorServicer(
            self._pipeline,
            pool=self._pool,
            admission=admission,
            defaults=Defaults(
                settings.default_collection,
                settings.default_reranker,
                settings.source_catalogue(),
                settings.ensemble_registry(),
            ),
            turns=TurnHandler(
                pipeline=self._pipeline,
                generator=generator_client,
                evaluator=evaluator_client,
                config=config,
                pool=self._pool,
            ),
            conversations=self._conversations,
            turn_timeout_s=settings.turn_timeout_s,
        )
        self.registrations = [Registration(pb_grpc.add_OrchestratorServiceServicer_to_server, servicer, NAME)]

    async def start(self) -> None:
        """Open the outbox, send what it holds, and open the store of conversations.

        Raises:
            ServerStartError: one cannot be used.
        """
        try:
            await self._relay.start()
        except Unavailable as error:
            damaged = error.reason == "OUTBOX_DAMAGED"
            advice = "" if damaged else f": set {variable(self._settings, 'home')} to a writable folder"
            raise ServerStartError(f"{error.message}{advice}") from error
        try:
            await self._conversations.start()
        except Unavailable as error:
            name = variable(self._settings, "conversations_url")
            raise ServerStartError(f"{error.message}: set {name} to a writable place") from error

    async def stop(self) -> None:
        """Store every pending observation, deliver what can be delivered, and close the channels."""
        await self._pipeline.drain()
        await self._conversations.stop()
        await self._relay.drain(self._settings.outbox_drain_s)
        await self._relay.stop()
        if self._log is not None:
            await self._log.close()
        await asyncio.gather(*(channel.close() for channel in self._channels))
        self._pool.close()


if __name__ == "__main__":
    sys.exit(run_service("orchestrator", OrchestratorSettings, Orchestrator))
