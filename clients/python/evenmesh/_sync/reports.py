# Generated from _async by generate_sync.py (make sdk). Do not edit.
"""Calls of the evaluator that read observations: runs, configurations, reports."""

from collections.abc import Iterator

from evenmesh._sync.calls import PAGE_SIZE, Calls
from evenmesh.codec import messages as codec
from evenmesh.codec.mapping import decode
from evenmesh.codec.values import text
from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh.types.reports import Configuration, ConfigurationSummary, Measurement, Run, RunReport, Window


class ReportCalls(Calls):
    """Read runs, configurations and their reports."""

    def runs(self, limit: int = PAGE_SIZE, *, timeout: float | None = None) -> list[Run]:
        """Return the newest ``limit`` runs, newest first."""
        found = self._list(
            "evaluator", self._evaluator.ListRuns, pb.ListRunsRequest, "runs", limit=limit, timeout=timeout
        )
        return [decode(Run, one) for one in found]

    def configurations(
        self, limit: int = PAGE_SIZE, *, timeout: float | None = None
    ) -> list[ConfigurationSummary]:
        """Return the newest ``limit`` configurations, newest first."""
        found = self._list(
            "evaluator",
            self._evaluator.ListConfigurations,
            pb.ListConfigurationsRequest,
            "configurations",
            limit=limit,
            timeout=timeout,
        )
        return [decode(ConfigurationSummary, one) for one in found]

    def report(
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
        reply = self._call("evaluator", self._evaluator.GetReport, request, timeout)
        return codec.run_report(reply.report)

    def measurements(self, run_id: str, *, timeout: float | None = None) -> Iterator[Measurement]:
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
