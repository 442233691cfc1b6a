"""What is counted of a step, and what a step is written as."""

import json
import math

import pytest

from evenmesh_studies.load.calls.call import Call, Outcome
from evenmesh_studies.load.step import Distribution, Slo, StepResult, as_record, from_record

SLO = Slo(150.0, share=0.5)


def test_latency_counts_from_when_a_call_was_due() -> None:
    call = Call(intended_s=1.0, sent_s=1.5, ended_s=1.75, outcome=Outcome())
    assert call.latency_ms == pytest.approx(1e3 * (1.75 - 1.0))
    assert call.late_ms == pytest.approx(1e3 * (1.5 - 1.0))


def test_calls_due_while_the_mesh_was_still_empty_are_not_counted(make) -> None:
    one = make([100.0] * 9, seconds=10.0)
    early = Call(0.0, 0.0, 0.5, Outcome())
    both = StepResult(one.step, [early, *one.calls], one.gaps, one.lags, 10.0, 0.1, 1, one.usage)
    assert len(both.counted) == 9
    assert both.offered_per_s == pytest.approx(9 / (0.9 * 10))


def test_goodput_is_answered_in_time_and_not_degraded(make) -> None:
    one = make([100.0, 200.0, 100.0, 100.0], failed=[2], seconds=10.0)
    assert one.good_share(SLO) == pytest.approx(2 / 4)
    assert one.goodput_per_s(SLO) == pytest.approx(2 / 9)
    worse = make([100.0] * 4, outcome=Outcome(degraded=("rerank",)))
    assert worse.good_share(SLO) == 0.0
    assert worse.error_share == 0.0


def test_a_late_first_text_is_not_good(make) -> None:
    one = make([100.0] * 2)  # its first text comes after half of the time
    assert one.good_share(Slo(150.0, first_ms=60.0)) == 1.0
    assert one.good_share(Slo(150.0, first_ms=40.0)) == 0.0


def test_failed_calls_are_counted_by_code_and_have_no_latency(make) -> None:
    one = make([100.0, 900.0], failed=[1], code="RESOURCE_EXHAUSTED OVERLOADED")
    assert one.codes() == {"OK": 1, "RESOURCE_EXHAUSTED OVERLOADED": 1}
    assert one.latencies_ms().tolist() == pytest.approx([100.0])
    assert one.error_share == 1 / 2


def test_a_step_without_calls_says_nothing(make) -> None:
    one = make([])
    assert math.isnan(one.error_share)
    assert math.isnan(one.good_share(SLO))
    assert Distribution.of(one.latencies_ms()).count == 0


def test_a_step_survives_being_written(make) -> None:
    one = make([100.0, 200.0], failed=[1], name="open-1", rate=2.0, outcome=None)
    again = from_record(json.loads(json.dumps(as_record(one), allow_nan=False)))
    assert again.step == one.step
    assert again.codes() == one.codes()
    assert again.latencies_ms().tolist() == pytest.approx(one.latencies_ms().tolist(), abs=1e-2)
    assert {name: values.tolist() for name, values in again.stages_ms().items()} == {"generate": [50.0]}
    assert again.gaps.count == one.gaps.count
    assert as_record(again) == as_record(one)
