"""Calls of the evaluator that read observations: runs, configurations, reports, statements."""

from collections.abc import AsyncIterator
from typing import Final

from evenmesh._async.calls import PAGE_SIZE, AsyncCalls
from evenmesh.codec import messages as codec
from evenmesh.codec.mapping import decode
from evenmesh.codec.values import text
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.types.reports import (
    Configuration,
    ConfigurationSummary,
    DeletedRun,
    Measurement,
    ObservedAsk,
    Run,
    RunReport,
    Window,
)
from evenmesh.types.statements import ProviderBalance, SignedStatement

DELETE_RUN_TIMEOUT_S: Final = 60.0
"""Time that the deletion of a run may take. Seconds."""


class AsyncReportCalls(AsyncCalls):
    """Read runs, configurations and their reports, and statements about providers; delete runs."""

    async def runs(self, limit: int = PAGE_SIZE, *, timeout: float | None = None) -> list[Run]:
        """Return the newest ``limit`` runs, newest first."""
        found = await self._list(
            "evaluator", self._evaluator.ListRuns, pb.ListRunsRequest, "runs", limit=limit, timeout=timeout
        )
        return [decode(Run, one) for one in found]

    async def delete_run(self, run_id: str, *, timeout: float = DELETE_RUN_TIMEOUT_S) -> DeletedRun:
        """Delete a run with its observations, their texts and its report; deleting it again deletes nothing.

        Reports of configurations and statements about providers keep their sums. If the call fails, call it
        again: it goes on where it ended.

        Args:
            run_id: the run.
            timeout: seconds; the observations are deleted a few hundred at a time.
        """
        request = pb.DeleteRunRequest(run_id=text("run_id", run_id))
        reply = await self._call("evaluator", self._evaluator.DeleteRun, request, timeout)
        return decode(DeletedRun, reply)

    async def configurations(
        self, limit: int = PAGE_SIZE, *, timeout: float | None = None
    ) -> list[ConfigurationSummary]:
        """Return the newest ``limit`` configurations, newest first."""
        found = await self._list(
            "evaluator",
            self._evaluator.ListConfigurations,
            pb.ListConfigurationsRequest,
            "configurations",
            limit=limit,
            timeout=timeout,
        )
        return [decode(ConfigurationSummary, one) for one in found]

    async def report(
        self,
        run_id: str | None = None,
        *,
        configuration: Configuration | None = None,
        window: Window = "all",
        timeout: float | None = None,
    ) -> RunReport:
        """Return the report of one run so far, or of one configuration over all runs.

        Args:
            run_id: the run; either this or a configuration.
            configuration: what made the observations.
            window: which observations: "all", or those of the last "hour" or "day".
            timeout: seconds the call may take.
        """
        request = codec.report_request(run_id, configuration, window)
        reply = await self._call("evaluator", self._evaluator.GetReport, request, timeout)
        return codec.run_report(reply.report)

    def measurements(self, run_id: str, *, timeout: float | None = None) -> AsyncIterator[Measurement]:
        """Yield the measurements of a run, one for each observation, in the order they were stored.

        Closing the iterator ends the call.
        """
        request = pb.ListMeasurementsRequest(run_id=text("run_id", run_id))
        return self._stream(
            "evaluator",
            self._evaluator.ListMeasurements,
            request,
            lambda message: (decode(Measurement, message),),
            timeout or self._timeout,
        )

    async def observation(self, observation_id: str, *, timeout: float | None = None) -> ObservedAsk:
        """Return what one ask showed and said, by the id of its observation."""
        request = pb.GetObservationRequest(observation_id=text("observation_id", observation_id))
        reply = await self._call("evaluator", self._evaluator.GetObservation, request, timeout)
        return codec.observed(reply.observation)

    async def exposure_statement(
        self,
        provider: str | None = None,
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        nonce: str | None = None,
        timeout: float | None = None,
    ) -> SignedStatement:
        """Return the signed statement about what one provider deserved and was given.

        Args:
            provider: the provider; without it that of the credential.
            first_day: first day, UTC, such as ``2026-11-01``; without it 29 days before the last.
            last_day: last day; without it the newest there is.
            nonce: repeated in the statement: at most 64 letters, digits, ``-`` and ``_``.
            timeout: seconds the call may take.
        """
        request = pb.GetExposureStatementRequest(
            provider=text("provider", provider),
            first_day=text("first_day", first_day),
            last_day=text("last_day", last_day),
            nonce=text("nonce", nonce),
        )
        reply = await self._call("evaluator", self._evaluator.GetExposureStatement, request, timeout)
        return decode(SignedStatement, reply.envelope)

    async def exposure_balance(
        self, collection: str, *, half_life_days: float | None = None, timeout: float | None = None
    ) -> list[ProviderBalance]:
        """Return what the providers of a collection are owed, those furthest from their target first.

        Args:
            collection: the collection.
            half_life_days: days after which an ask counts half; 30 without it.
            timeout: seconds the call may take.
        """
        request = pb.GetExposureBalanceRequest(
            collection=text("collection", collection), half_life_days=half_life_days
        )
        reply = await self._call("evaluator", self._evaluator.GetExposureBalance, request, timeout)
        return [decode(ProviderBalance, one) for one in reply.providers]

    async def reset_exposure_balance(self, collection: str, *, timeout: float | None = None) -> int:
        """Forget what the providers of a collection are owed, and return how many they were."""
        request = pb.ResetExposureBalanceRequest(collection=text("collection", collection))
        reply = await self._call("evaluator", self._evaluator.ResetExposureBalance, request, timeout)
        return int(reply.num_providers)
