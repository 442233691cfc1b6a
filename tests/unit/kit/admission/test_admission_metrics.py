"""Metrics of admission."""

from __future__ import annotations

import asyncio

import pytest

from evenmesh.wire.errors import Overloaded
from evenmesh_kit.admission.metrics import AdmissionMetrics
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.in_memory_telemetry import InMemoryTelemetry

FULL = "OVERLOADED"


async def test_it_tells_what_is_in_flight_waits_and_was_refused() -> None:
    telemetry = InMemoryTelemetry("echo")
    pairs, tokens = Admission(4, "pairs", queue_s=60.0), Admission(7, "tokens")
    AdmissionMetrics(telemetry, pairs, tokens)

    def reported(name: str) -> dict[str, float]:
        points = telemetry.metrics()[f"evenmesh.admission.{name}"].data.data_points
        return {
            one.attributes["unit"]: one.value for one in points if one.attributes.get("reason", FULL) == FULL
        }

    async def later() -> None:
        async with pairs.admit(3):
            pass

    with pairs.admit(4):
        waiting = asyncio.create_task(later())
        await asyncio.sleep(0)
        assert reported("in_flight") == {"pairs": 4, "tokens": 0}
        assert reported("waiting") == {"pairs": 3, "tokens": 0}
        with pytest.raises(Overloaded), pairs.admit(1):
            pass
    await waiting
    assert reported("in_flight") == {"pairs": 0, "tokens": 0}
    assert reported("capacity") == {"pairs": 4, "tokens": 7}
    assert reported("refused") == {"pairs": 1, "tokens": 0}
    refused = telemetry.metrics()["evenmesh.admission.refused"].data.data_points
    assert {one.attributes["reason"] for one in refused} == {FULL, "SHARE_FULL", "OVER_CAPACITY"}
    (waits,) = telemetry.metrics()["evenmesh.admission.wait.duration"].data.data_points
    assert (dict(waits.attributes), waits.count) == ({"unit": "pairs"}, 1)


def test_a_server_and_its_service_report_beside_each_other() -> None:
    telemetry = InMemoryTelemetry("echo")
    AdmissionMetrics(telemetry, Admission(7, "bytes of replies"))
    AdmissionMetrics(telemetry).watch(Admission(4, "pairs"))
    points = telemetry.metrics()["evenmesh.admission.capacity"].data.data_points
    assert {one.attributes["unit"]: one.value for one in points} == {"bytes of replies": 7, "pairs": 4}


def test_nothing_is_reported_where_telemetry_is_off() -> None:
    admission = Admission(4, "pairs")
    AdmissionMetrics(Telemetry.disabled(), admission)
    with admission.admit(4):
        assert admission.in_flight == 4
