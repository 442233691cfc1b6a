"""The RPCs that report on observations."""
# ruff: noqa: N802 - names and arguments are the contract's

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.evaluator.v1 import evaluator_service_pb2_grpc as pb_grpc
from evenmesh_evaluator import fields
from evenmesh_evaluator.engine import Evaluator
from evenmesh_evaluator.reports import codec
from evenmesh_kit.rpc.handlers import Context
from evenmesh_kit.security import caller as callers


class ReportsServicer(pb_grpc.EvaluatorServiceServicer):
    """Serves reports, runs, configurations, measurements and single observations; deletes runs.

    Args:
        evaluator: the engine.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator

    async def GetReport(self, request: pb.GetReportRequest, context: Context) -> pb.GetReportResponse:
        """Return the report of one run or configuration."""
        scope = codec.scope(request)
        window = codec.WINDOWS.read("window", request.window)
        report = await self._evaluator.report(callers.current().tenant, scope, window)
        return pb.GetReportResponse(report=codec.report(report))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        """List runs, newest first."""
        tenant = callers.current().tenant
        before, size = codec.page(request, tenant)
        return codec.runs(*await self._evaluator.runs(tenant, before=before, limit=size), tenant)

    async def ListConfigurations(
        self, request: pb.ListConfigurationsRequest, context: Context
    ) -> pb.ListConfigurationsResponse:
        """List configurations, newest first."""
        tenant = callers.current().tenant
        before, size = codec.page(request, tenant)
        found = await self._evaluator.configurations(tenant, before=before, limit=size)
        return codec.configurations(*found, tenant)

    async def DeleteRun(self, request: pb.DeleteRunRequest, context: Context) -> pb.DeleteRunResponse:
        """Delete a run with its observations and its report."""
        run_id = fields.identifier("run_id", request.run_id)
        deleted, number = await self._evaluator.delete_run(callers.current().tenant, run_id)
        return pb.DeleteRunResponse(deleted=deleted, num_observations=number)

    async def GetObservation(
        self, request: pb.GetObservationRequest, context: Context
    ) -> pb.GetObservationResponse:
        """Return one observation as it was stored."""
        observation_id = fields.identifier("observation_id", request.observation_id)
        payload = await self._evaluator.observation(callers.current().tenant, observation_id)
        return await asyncio.to_thread(codec.observation, payload)

    async def ListMeasurements(
        self, request: pb.ListMeasurementsRequest, context: Context
    ) -> AsyncIterator[pb.ListMeasurementsResponse]:
        """Stream the measurements of a run, one observation after the other."""
        run_id = fields.identifier("run_id", request.run_id)
        async for one in self._evaluator.measurements(callers.current().tenant, run_id):
            yield codec.measurement(one)
