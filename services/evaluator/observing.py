"""What observers and readers of reports call: thin RPCs over the engine."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from meshkit.admission import Admission
from meshkit.compute import ComputePool
from meshkit.errors import MeshError, item_error
from meshkit.security import caller as callers
from meshkit.telemetry import Telemetry
from ragcore.errors import InvalidInput
from ragmesh.evaluator.v1 import evaluator_service_pb2 as pb
from ragmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from services.evaluator.calls import Context, kib
from services.evaluator.codec import fields, observations, reports
from services.evaluator.domain import Measurement, Observation
from services.evaluator.engine import Evaluator
from services.evaluator.measurement import measure
from services.evaluator.metrics import EvaluatorMetrics

# What one observation may hold (ranked places, candidates, characters to compare) and still be measured
# within a millisecond, the longest that anything may occupy the event loop.
_INLINE_CELLS = 2_000
_CHARACTERS_PER_CELL = 8
_SLOW_METRICS = frozenset({pb.UTILITY_METRIC_ROUGE1, pb.UTILITY_METRIC_ROUGE2, pb.UTILITY_METRIC_ROUGE_L})


class ObservingServicer(pb_grpc.EvaluatorServiceServicer):
    """Observing, and what it adds up to.

    Args:
        evaluator: the engine.
        pool: threads for what is too large to compute on the event loop.
        admission: counts KiB of requests and observations in flight.
        window: observations of one stream that may be on their way to disk. Observations, [1, inf).
        metrics: told what becomes of observations; None records nothing.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        pool: ComputePool,
        admission: Admission,
        window: int,
        metrics: EvaluatorMetrics | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._pool = pool
        self._admission = admission
        self._window = window
        self._metrics = metrics or EvaluatorMetrics(Telemetry.disabled())

    async def Observe(
        self, request_iterator: AsyncIterator[pb.ObserveRequest], context: Context
    ) -> AsyncIterator[pb.ObserveResponse]:
        """Stores observations and acknowledges each in order; up to a window of them share commits.

        A refused observation does not end the stream. A store that cannot write does, with UNAVAILABLE: what
        was not acknowledged may be sent again.
        """
        tenant = callers.current().tenant
        outcomes: asyncio.Queue[tuple[asyncio.Task[pb.ObserveResponse], str] | None] = asyncio.Queue()
        window = asyncio.Semaphore(self._window)

        async def read() -> None:
            try:
                async for request in request_iterator:
                    await window.acquire()
                    run_id = request.observation.run_id if request.want_report else ""
                    task = asyncio.create_task(self._observed(tenant, request.observation))
                    outcomes.put_nowait((task, run_id))
            finally:
                outcomes.put_nowait(None)

        reader = asyncio.create_task(read())
        try:
            while (outcome := await outcomes.get()) is not None:
                task, run_id = outcome
                try:
                    response = await task
                finally:
                    window.release()
                yield response
                if run_id and response.HasField("ack"):
                    report = await self._evaluator.report(tenant, run_id)
                    yield pb.ObserveResponse(report=reports.report(report))
            await reader
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            left = []
            while not outcomes.empty():
                if (outcome := outcomes.get_nowait()) is not None:
                    outcome[0].cancel()
                    left.append(outcome[0])
            await asyncio.gather(*left, return_exceptions=True)

    async def GetReport(self, request: pb.GetReportRequest, context: Context) -> pb.GetReportResponse:
        """The report of one run or configuration."""
        scope = reports.scope(request)
        window = reports.window("window", request.window)
        report = await self._evaluator.report(callers.current().tenant, scope, window)
        return pb.GetReportResponse(report=reports.report(report))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        """The runs there are, newest first."""
        before, size = reports.page(request)
        tenant = callers.current().tenant
        return reports.runs(*await self._evaluator.runs(tenant, before=before, limit=size))

    async def ListConfigurations(
        self, request: pb.ListConfigurationsRequest, context: Context
    ) -> pb.ListConfigurationsResponse:
        """The configurations there are, newest first."""
        before, size = reports.page(request)
        tenant = callers.current().tenant
        return reports.configurations(
            *await self._evaluator.configurations(tenant, before=before, limit=size)
        )

    async def ListMeasurements(
        self, request: pb.ListMeasurementsRequest, context: Context
    ) -> AsyncIterator[pb.ListMeasurementsResponse]:
        """What was measured in a run, observation by observation."""
        run_id = fields.identifier("run_id", request.run_id)
        async for one in self._evaluator.measurements(callers.current().tenant, run_id):
            yield reports.measurement(one)

    async def _observed(self, tenant: str, message: pb.Observation) -> pb.ObserveResponse:
        with self._metrics.receiving(message) as receiving:
            async with self._admission.admit(kib(message)):
                try:
                    observation, measurement = await self._read(message)
                except (MeshError, InvalidInput) as error:
                    receiving.refused()
                    refusal = pb.ObserveRefusal(observation_id=message.id, error=item_error(error))
                    return pb.ObserveResponse(refusal=refusal)
                observation = replace(observation, tenant=tenant)
                new = await self._evaluator.observe(observation, measurement)
            receiving.stored(observation, measurement, new=new)
        return pb.ObserveResponse(ack=pb.ObserveAck(observation_id=message.id, duplicate=not new))

    async def _read(self, message: pb.Observation) -> tuple[Observation, Measurement]:
        now_us = time.time_ns() // 1000
        if _cells(message) <= _INLINE_CELLS:
            return read(message, now_us)
        return await self._pool.run(read, message, now_us)


def read(message: pb.Observation, now_us: int) -> tuple[Observation, Measurement]:
    """Reads and measures an observation; ``now_us`` stands in for an unset time.

    Raises:
        InvalidField: a bound of the contract is broken.
        InvalidInput: arguments that do not fit each other.
    """
    observation = observations.observation(message, now_us=now_us)
    return observation, measure(observation)


def read_again(payload: bytes) -> tuple[Observation, Measurement]:
    """Reads and measures an observation that was stored; one without a time is as old as can be."""
    return read(pb.Observation.FromString(payload), 0)


def _cells(message: pb.Observation) -> int:
    if message.HasField("conversation"):
        return _INLINE_CELLS + 1
    cells = len(message.shown.indices) + len(message.candidates)
    said = sum(len(answer.text) for answer in message.answers)
    characters = said if message.HasField("vote_winner") else 0
    if message.labels.references:
        if message.labels.metric in _SLOW_METRICS:
            return _INLINE_CELLS + 1
        known = sum(map(len, message.labels.references))
        characters += said * len(message.labels.references) + known * len(message.answers)
        characters += sum(len(candidate.text) for candidate in message.candidates)
    return cells + characters // _CHARACTERS_PER_CELL
