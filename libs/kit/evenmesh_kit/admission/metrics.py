"""Metrics of admission."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakKeyDictionary

from opentelemetry.metrics import CallbackOptions, Observation

from evenmesh_kit.admission.queue import REASONS, Admission
from evenmesh_kit.telemetry.setup import Telemetry

_SECONDS: Final = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
_watched: Final[WeakKeyDictionary[Telemetry, list[Admission]]] = WeakKeyDictionary()
"""The admissions of each telemetry: OpenTelemetry asks only who registers an observable metric first."""


class AdmissionMetrics:
    """Reports on admissions, each by its unit of work; does nothing if telemetry is disabled.

    A process may have several: its server reports on the memory of requests and replies, its service on work.

    ``evenmesh.admission.in_flight``, ``.waiting`` and ``.capacity`` are work by ``unit``,
    ``evenmesh.admission.refused`` counts rejected calls by ``reason`` too, and
    ``evenmesh.admission.wait.duration`` has the seconds that admitted calls waited.

    Args:
        telemetry: makes the metrics.
        admissions: admissions to watch from the start; of units that no other one of the telemetry has.
    """

    def __init__(self, telemetry: Telemetry, *admissions: Admission) -> None:
        self._enabled = telemetry.enabled
        first = telemetry not in _watched
        self._admissions = _watched.setdefault(telemetry, [])
        meter = telemetry.meter
        self._waits = meter.create_histogram(
            "evenmesh.admission.wait.duration",
            "s",
            "Wait in the admission queue of calls that were admitted.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        if self._enabled and first:
            for name, description, read in (
                ("in_flight", "Work admitted and not ended.", lambda one: one.in_flight),
                ("waiting", "Work in the admission queue.", lambda one: one.waiting),
                ("capacity", "Most work in flight.", lambda one: one.capacity),
            ):
                meter.create_observable_gauge(
                    f"evenmesh.admission.{name}", [self._each(read)], description=description
                )
            meter.create_observable_counter(
                "evenmesh.admission.refused",
                [self._rejections],
                "{call}",
                "Calls rejected because their work did not fit.",
            )
        for admission in admissions:
            self.watch(admission)

    def watch(self, admission: Admission) -> None:
        """Report on one more admission."""
        if not self._enabled:
            return
        self._admissions.append(admission)
        attributes = {"unit": admission.unit}
        admission.on_wait(lambda seconds: self._waits.record(seconds, attributes))

    def _each(self, read: Callable[[Admission], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(read(one), {"unit": one.unit}) for one in self._admissions]

        return observe

    def _rejections(self, _: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(one.refused[reason], {"unit": one.unit, "reason": reason})
            for one in self._admissions
            for reason in REASONS
        ]
