"""What metrics tell of the work at a service's door."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation

from meshkit.admission import Admission
from meshkit.telemetry import Telemetry

_SECONDS: Final = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]


class AdmissionMetrics:
    """Watches admissions, each under its unit of work; does nothing where telemetry is disabled.

    ``ragmesh.admission.in_flight``, ``.waiting`` and ``.capacity`` are work by ``unit``,
    ``ragmesh.admission.refused`` counts calls, and ``ragmesh.admission.wait.duration`` has the seconds that
    calls waited whose turn came.

    Args:
        telemetry: has the meter.
        admissions: those there are from the start; of different units.
    """

    def __init__(self, telemetry: Telemetry, *admissions: Admission) -> None:
        self._enabled = telemetry.enabled
        self._admissions: list[Admission] = []
        meter = telemetry.meter
        self._waits = meter.create_histogram(
            "ragmesh.admission.wait.duration",
            "s",
            "Wait at the door of calls that were let in.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        if self._enabled:
            for name, description, read in (
                ("in_flight", "Work admitted and not ended.", lambda one: one.in_flight),
                ("waiting", "Work at the door.", lambda one: one.waiting),
                ("capacity", "Most work in flight.", lambda one: one.capacity),
            ):
                meter.create_observable_gauge(
                    f"ragmesh.admission.{name}", [self._each(read)], description=description
                )
            meter.create_observable_counter(
                "ragmesh.admission.refused",
                [self._each(lambda one: one.refused)],
                "{call}",
                "Calls refused for want of room.",
            )
        for admission in admissions:
            self.watch(admission)

    def watch(self, admission: Admission) -> None:
        """Tells of one more."""
        if not self._enabled:
            return
        self._admissions.append(admission)
        attributes = {"unit": admission.unit}
        admission.tell(lambda seconds: self._waits.record(seconds, attributes))

    def _each(self, read: Callable[[Admission], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(read(one), {"unit": one.unit}) for one in self._admissions]

        return observe
