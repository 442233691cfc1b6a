"""The RPC that takes observations in."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh.wire.errors import MeshError
from evenmesh_core.errors import InvalidInput
from evenmesh_evaluator import cost
from evenmesh_evaluator.domain import Measurement, Observation
from evenmesh_evaluator.engine import TENANT_FULL, Evaluator
from evenmesh_evaluator.fields import MAX_ID_BYTES, kib
from evenmesh_evaluator.metrics import EvaluatorMetrics
from evenmesh_evaluator.observations import bounds, codec
from evenmesh_evaluator.observations.scores import measure
from evenmesh_evaluator.reports.codec import report
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.rpc.handlers import Context
from evenmesh_kit.rpc.statuses import item_error
from evenmesh_kit.rpc.wire_scan import check_bounds
from evenmesh_kit.security import agents
from evenmesh_kit.security import caller as callers
from evenmesh_kit.telemetry.setup import Telemetry

# Size of the largest observation (ranked places, candidates, characters to compare) that is measured within a
# millisecond, the longest that anything may occupy the event loop.
_INLINE_CELLS = 2_000
_CHARACTERS_PER_CELL = 8
_SLOW_METRICS = frozenset({pb.UTILITY_METRIC_ROUGE1, pb.UTILITY_METRIC_ROUGE2, pb.UTILITY_METRIC_ROUGE_L})


class ObservationsServicer(pb_grpc.EvaluatorServiceServicer):
    """Takes observations in, measures and stores them.

    Args:
        evaluator: the engine.
        pool: threads that measure observations too large for the event loop.
        admission: counts KiB of requests and observations in flight.
        window: observations of one stream that may be on their way to disk. Observations, [1, inf).
        metrics: records what happens to observations; None records nothing.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        pool: TenantPool,
        admission: Admission,
        window: int,
        metrics: EvaluatorMetrics | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._observation_pool = pool
        self._admission = admission
        self._window = window
        self._metrics = metrics or EvaluatorMetrics(Telemetry.disabled())

    async def Observe(
        self, request_iterator: AsyncIterator[pb.ObserveRequest], context: Context
    ) -> AsyncIterator[pb.ObserveResponse]:
        """Store observations and acknowledge each in order; up to a window of them share commits.

        A refused observation does not end the stream. A store that cannot write ends it with UNAVAILABLE:
        the caller may send unacknowledged observations again. A caller that is bound to agents stores none:
        an observation says what happened to every agent's asks, and changes what all of them are shown.
        """
        agents.check_all("observation")
        tenant = callers.current().tenant
        outcomes: asyncio.Queue[tuple[asyncio.Task[pb.ObserveResponse], str] | None] = asyncio.Queue()
        window = asyncio.Semaphore(self._window)

        async def read() -> None:
            try:
                async for request in request_iterator:
                    await window.acquire()
                    run_id = request.observation.run_id if request.want_report else ""
                    task = asyncio.create_task(self.store_observation(tenant, request.observation))
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
                    yield pb.ObserveResponse(report=report(await self._evaluator.report(tenant, run_id)))
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

    async def store_observation(self, tenant: str, message: pb.Observation) -> pb.ObserveResponse:
        """Measure and store an observation of a tenant; return its acknowledgement or refusal.

        Raises:
            MeshError: it cannot be stored now.
        """
        with self._metrics.record(message) as record:
            try:
                cpu_s = bounds.check(message)
            except MeshError as error:
                record.refused()
                refusal = pb.ObserveRefusal(observation_id=message.id[:MAX_ID_BYTES], error=item_error(error))
                return pb.ObserveResponse(refusal=refusal)
            async with self._admission.admit(kib(message) + cost.Cost(cpu_s, 0).kib):
                try:
                    observation, measurement = await self._measure(message)
                except (MeshError, InvalidInput) as error:
                    record.refused()
                    refusal = pb.ObserveRefusal(observation_id=message.id, error=item_error(error))
                    return pb.ObserveResponse(refusal=refusal)
                observation = replace(observation, tenant=tenant)
                try:
                    new = await self._evaluator.observe(observation, measurement)
                except MeshError as error:
                    if error.reason != TENANT_FULL:
                        raise
                    record.refused()
                    refusal = pb.ObserveRefusal(observation_id=message.id, error=item_error(error))
                    return pb.ObserveResponse(refusal=refusal)
            record.stored(observation, measurement, new=new)
        return pb.ObserveResponse(ack=pb.ObserveAck(observation_id=message.id, duplicate=not new))

    async def _measure(self, message: pb.Observation) -> tuple[Observation, Measurement]:
        now_us = time.time_ns() // 1000
        if _cells(message) <= _INLINE_CELLS:
            return _measure_new(message, now_us)
        return await self._observation_pool.run(_measure_new, message, now_us)


def _measure_new(message: pb.Observation, now_us: int) -> tuple[Observation, Measurement]:
    check_bounds(message)
    return measure_message(message, now_us)


def measure_message(message: pb.Observation, now_us: int) -> tuple[Observation, Measurement]:
    """Read and measure an observation; ``now_us`` replaces an unset time.

    Raises:
        InvalidField: a bound of the contract is broken.
        InvalidInput: arguments do not fit each other.
    """
    observation = codec.observation(message, now_us=now_us)
    return observation, measure(observation)


def measure_payload(payload: bytes) -> tuple[Observation, Measurement]:
    """Read and measure a stored observation; an unset time becomes 0."""
    return measure_message(pb.Observation.FromString(payload), 0)


def _cells(message: pb.Observation) -> int:
    if message.HasField("conversation"):
        return _INLINE_CELLS + 1
    cells = len(message.shown.indices) + len(message.candidates) + len(message.labels.useful_passage_ids)
    cells += len(message.degradations)
    cells += sum(len(answer.cited) for answer in message.answers)
    answered = sum(len(answer.text) for answer in message.answers)
    characters = answered if message.HasField("vote_winner") else 0
    if message.labels.references:
        if message.labels.metric in _SLOW_METRICS:
            return _INLINE_CELLS + 1
        known = sum(map(len, message.labels.references))
        characters += answered * len(message.labels.references) + known * len(message.answers)
        characters += sum(len(candidate.text) for candidate in message.candidates)
    return cells + characters // _CHARACTERS_PER_CELL
