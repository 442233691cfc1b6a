"""Runs the orchestrator: ``python -m orchestrator``."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from meshkit import logs
from meshkit.admission import Admission
from meshkit.admission_metrics import AdmissionMetrics
from meshkit.compute import ComputePool
from meshkit.errors import Unavailable
from meshkit.server import Registration, ServerStartError, run, serve
from meshkit.settings import load, variable
from meshkit.spans import Spans
from meshkit.telemetry import Telemetry
from orchestrator import codec, tracing
from orchestrator.budgets import Plan, StageSpec
from orchestrator.clients import EvaluatorClient, GeneratorClient, RerankerClient, RetrieverClient
from orchestrator.conversations.codec import EvaluatorMeasures
from orchestrator.conversations.shelf import Shelf
from orchestrator.conversations.talk import Talk
from orchestrator.courier import Courier
from orchestrator.domain import Stage
from orchestrator.metrics import AskMetrics, CountedOutbox, WatchedPipeline
from orchestrator.outbox import Outbox
from orchestrator.pipeline import Pipeline
from orchestrator.servicer import OrchestratorServicer
from orchestrator.settings import OrchestratorSettings
from orchestrator.upstreams import Upstreams
from ragmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from ragmesh.orchestrator.v1 import orchestrator_service_pb2_grpc as pb_grpc

NAME = pb.DESCRIPTOR.services_by_name["OrchestratorService"].full_name
"""Full name of the service."""


def plan(settings: OrchestratorSettings) -> Plan:
    """The pipeline as the settings want it."""
    return Plan(
        stages=(
            StageSpec(Stage.RETRIEVE, settings.retrieve_share),
            StageSpec(Stage.RERANK, settings.rerank_share),
            StageSpec(Stage.GENERATE, 1.0),
        ),
        closing_share=settings.closing_share,
        batch_size=settings.batch_size,
        batches_in_flight=settings.batches_in_flight,
        report_wait_s=settings.report_wait_s,
    )


class Orchestrator:
    """Everything of one orchestrator process and its lifecycle. Made in a running event loop.

    Args:
        settings: the settings.
        telemetry: what is recorded of asks and of calls to other services.
    """

    def __init__(self, settings: OrchestratorSettings, telemetry: Telemetry) -> None:
        self._settings = settings
        limits = {"max_message_bytes": settings.max_message_bytes}
        retriever = RetrieverClient.channel_to(settings.retriever_target, telemetry=telemetry, **limits)
        reranker = RerankerClient.channel_to(settings.reranker_target, telemetry=telemetry, **limits)
        generator = GeneratorClient.channel_to(settings.generator_target, telemetry=telemetry, **limits)
        evaluator = EvaluatorClient.channel_to(settings.evaluator_target, telemetry=telemetry, **limits)
        upstreams = Upstreams(settings, telemetry.meter)
        writer = GeneratorClient(generator, upstreams.generator)
        judge = EvaluatorClient(evaluator, upstreams.evaluator)
        self._channels = (retriever, reranker, generator, evaluator)
        self._pool = ComputePool(settings.compute_threads, "orchestrator")
        # Only what is recorded pays for being recorded.
        watched = telemetry.enabled
        outbox = partial(CountedOutbox, telemetry) if watched else Outbox
        encode = partial(codec.observation, with_text=settings.observe_text)
        self._courier = Courier(
            outbox(
                settings.outbox_file(),
                capacity=settings.outbox_capacity,
                max_bytes=settings.outbox_max_bytes,
                flush=settings.outbox_flush,
            ),
            judge,
            tracing.encoder(encode) if watched else encode,
        )
        pipeline = partial(WatchedPipeline, AskMetrics(telemetry), Spans(telemetry)) if watched else Pipeline
        self._pipeline = pipeline(
            retriever=RetrieverClient(retriever, upstreams.retriever),
            reranker=RerankerClient(reranker, upstreams.reranker),
            generator=writer,
            observer=self._courier,
            plan=plan(settings),
            pool=self._pool,
            votes=judge,
        )
        admission = Admission(settings.max_work, "answers", queue_s=settings.queue_s)
        AdmissionMetrics(telemetry, admission)
        servicer = OrchestratorServicer(
            self._pipeline,
            pool=self._pool,
            admission=admission,
            default_collection=settings.default_collection,
            default_reranker=settings.default_reranker,
            sources=settings.catalogue(),
            ensembles=settings.rosters(),
            talk=Talk(
                pipeline=self._pipeline,
                generator=writer,
                measures=EvaluatorMeasures(judge),
                plan=plan(settings),
            ),
            shelf=Shelf(settings.conversation_limits()),
            turn_timeout_s=settings.turn_timeout_s,
        )
        self.registrations = [Registration(pb_grpc.add_OrchestratorServiceServicer_to_server, servicer, NAME)]

    async def start(self) -> None:
        """Opens the outbox and sends what is left in it. Raises ServerStartError when it cannot be used."""
        try:
            await self._courier.start()
        except Unavailable as error:
            name = variable(self._settings, "home")
            raise ServerStartError(f"{error.message}: set {name} to a folder that can be written") from error

    async def stop(self) -> None:
        """Keeps every observation that was begun, and lets go of the other services."""
        await self._pipeline.settle()
        await self._courier.stop()
        await asyncio.gather(*(channel.close() for channel in self._channels))
        self._pool.close()


async def main() -> None:
    """Serves until told to stop."""
    settings = load(OrchestratorSettings)
    logs.configure("orchestrator", settings)
    telemetry = Telemetry.from_settings("orchestrator", settings)
    service = Orchestrator(settings, telemetry)
    await serve("orchestrator", settings, service.registrations, service, telemetry=telemetry)


if __name__ == "__main__":
    sys.exit(run(main))
