"""Fairness over a sliding window, against values worked out by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from evenmesh.evaluator.v1 import evaluator_service_pb2 as pb
from evenmesh_evaluator.domain import Configuration, Exposed, Labels, Measurement, Observation
from evenmesh_evaluator.metrics import EvaluatorMetrics
from evenmesh_evaluator.observations.scores import measure
from evenmesh_evaluator.reports.fairness_window import OTHER, REST, FairnessWindow, Series, Share
from tests.support.in_memory_telemetry import InMemoryTelemetry

HOUR_S = 3600.0
NOW_S = 1_000_000 * HOUR_S


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


def observed(
    shown: Sequence[Sequence[int]],
    *,
    alpha: float | None = 1.0,
    at_s: float = NOW_S,
    useful: frozenset[str] | None = None,
    providers: Sequence[str] = ("x", "x", "y"),
    tenant: str = "t",
    collection: str = "c",
) -> tuple[Observation, Measurement]:
    """Rankings shown of three passages a, b and c of two providers, measured."""
    observation = Observation(
        id="o",
        run_id="r",
        query_id="q",
        observed_at_us=int(at_s * 1e6),
        passage_ids=["a", "b", "c"],
        providers=providers,
        shown=np.array(shown),
        answers=(),
        labels=Labels(useful=useful),
        configuration=Configuration(collection, "bm25", "none", "m", alpha),
        tenant=tenant,
    )
    return observation, measure(observation)


def window(clock: Clock, *, series: int = 20) -> FairnessWindow:
    """A window of an hour."""
    return FairnessWindow(HOUR_S, series=series, clock=clock)


def test_the_alpha_of_a_target_is_the_target() -> None:
    configuration = Configuration("c", "bm25", "none", "m", None, "disparity 0.3")
    assert Series.of("t", configuration).alpha == "disparity 0.3"


def test_disparity_is_the_mean_over_the_window() -> None:
    clock = Clock()
    subject = window(clock)
    # One of three passages shown every time: its expected exposure is 1.
    subject.add(*observed([[0], [0]]))
    # Two passages half of the time each.
    subject.add(*observed([[0], [1]]))
    ((key, fairness),) = subject.read().items()
    assert key == Series("t", "c", "bm25", "none", "m", "1")
    assert fairness.num_observations == 2
    # EE-D is the squared length of the expected exposures (Kim and Diaz, equation 4).
    assert fairness.mean("ee_d") == pytest.approx((1**2 + (0.5**2 + 0.5**2)) / 2)


def test_relevance_is_the_mean_over_what_has_judgements() -> None:
    clock = Clock()
    subject = window(clock)
    subject.add(*observed([[0], [1]], useful=frozenset({"a"})))
    subject.add(*observed([[0], [0]]))
    (fairness,) = subject.read().values()
    # Exposure [1/2, 1/2, 0] on the target [1, 0, 0]; the other observation has no target.
    assert fairness.mean("ee_r") == pytest.approx(0.5 * 1 + 0.5 * 0)
    assert fairness.mean("expected_utility") is None
    assert fairness.num_observations == 2


def test_providers_are_compared_by_all_of_their_exposure() -> None:
    clock = Clock()
    subject = window(clock)
    subject.add(*observed([[0], [2]]))  # x: 1/2, y: 1/2
    subject.add(*observed([[0], [1]]))  # x: 1/2 + 1/2, y: 0
    (fairness,) = subject.read().values()
    assert fairness.exposure_ratio == pytest.approx((1 / 2 + 0) / (1 / 2 + 1))
    assert {(one.provider, round(one.share, 9)) for one in subject.shares()} == {
        ("x", (1 / 2 + 1) / 2),
        ("y", (1 / 2) / 2),
    }


def test_providers_that_are_not_known_are_left_out() -> None:
    clock = Clock()
    subject = window(clock)
    subject.add(*observed([[0], [2]], providers=("", "", "y")))
    (fairness,) = subject.read().values()
    assert fairness.exposure_ratio is None
    assert subject.shares() == [Share("t", "c", "y", 1.0)]


def test_what_is_older_than_the_window_is_left_out() -> None:
    clock = Clock()
    subject = window(clock)
    subject.add(*observed([[0], [0]], at_s=NOW_S - 2 * HOUR_S))
    assert subject.read() == {}
    subject.add(*observed([[0], [1]]))
    clock.now_s += HOUR_S / 2
    subject.add(*observed([[0], [0]], at_s=clock.now_s))
    (fairness,) = subject.read().values()
    assert fairness.mean("ee_d") == pytest.approx((0.5 + 1) / 2)
    clock.now_s += HOUR_S / 2 + 60
    (fairness,) = subject.read().values()
    assert fairness.mean("ee_d") == 1.0
    clock.now_s += HOUR_S
    assert subject.read() == {}


def test_what_comes_late_counts_when_it_was_made() -> None:
    clock = Clock()
    subject = window(clock)
    subject.add(*observed([[0], [0]], at_s=NOW_S - HOUR_S / 2))
    clock.now_s += HOUR_S / 2 + 60
    assert subject.read() == {}


def test_configurations_beyond_the_most_observed_are_together() -> None:
    clock = Clock()
    subject = window(clock, series=2)
    for alpha, times in ((1.0, 3), (2.0, 2), (3.0, 1), (4.0, 1)):
        for _ in range(times):
            subject.add(*observed([[0], [0]], alpha=alpha))
    read = subject.read()
    assert {(key.alpha, one.num_observations) for key, one in read.items()} == {
        ("1", 3),
        ("2", 2),
        (OTHER, 1 + 1),
    }
    assert read[Series.rest("t")].mean("ee_d") == 1.0


def test_however_many_are_named_little_is_kept() -> None:
    clock = Clock()
    subject = window(clock, series=5)
    for number in range(300):
        subject.add(*observed([[0], [0]], alpha=number / 100))
    read = subject.read()
    assert len(read) == 5 + 1
    assert sum(one.num_observations for one in read.values()) == 300


def named_configurations(subject: FairnessWindow, tenant: str) -> list[int]:
    """How often each named configuration of a tenant was observed."""
    return [
        one.num_observations
        for key, one in subject.read().items()
        if key.tenant == tenant and not key.is_rest
    ]


def test_no_tenant_takes_the_series_of_another() -> None:
    clock = Clock()
    subject = window(clock, series=4)
    for number in range(300):
        for _ in range(2):
            subject.add(*observed([[0], [0]], alpha=number / 100, tenant="many"))
    subject.add(*observed([[0], [2]], tenant="one"))
    assert named_configurations(subject, "one") == [1]
    assert named_configurations(subject, "many") == [2] * 3
    # Those past the limit are still the tenant's.
    assert subject.read()[Series.rest("many")].num_observations == 2 * (300 - 3)
    assert {(one.provider, one.share) for one in subject.shares() if one.tenant == "one"} == {
        ("x", 0.5),
        ("y", 0.5),
    }


def test_however_many_tenants_there_are_little_is_kept() -> None:
    subject = window(Clock(), series=2)
    for number in range(500):
        subject.add(*observed([[0], [0]], tenant=f"t{number}"))
    read = subject.read()
    assert len(read) == 2 + 2 + 1
    assert sum(one.num_observations for one in read.values()) == 500
    assert read[REST].num_observations == 500 - 4


def test_tenants_share_the_series_of_a_bucket_evenly() -> None:
    clock = Clock()
    subject = window(clock, series=1000)
    for tenant in ("first", "second"):
        for number in range(300):
            subject.add(*observed([[0], [0]], alpha=number / 100, tenant=tenant))
    assert [len(named_configurations(subject, tenant)) for tenant in ("first", "second")] == [100, 100]
    for tenant in ("first", "second"):
        assert subject.read()[Series.rest(tenant)].num_observations == 200


def test_providers_of_a_tenant_take_bounded_memory() -> None:
    clock = Clock()
    subject = window(clock, series=1000)
    for number in range(1000):
        names = [f"{number}-{place}" for place in range(20)]
        observation, measurement = observed([[0], [0]], alpha=float(number % 150))
        exposed = Exposed(names, np.ones(20), None)
        subject.add(observation, replace(measurement, providers=exposed))
    read = subject.read().values()
    assert sum(len(one.providers) for one in read) <= 4_000 + len(read)
    assert sum(sum(one.providers.values()) for one in read) == 1000 * 20


def test_providers_beyond_the_most_exposed_are_together() -> None:
    clock = Clock()
    subject = window(clock, series=1)
    subject.add(*observed([[0, 1], [0, 2]], providers=("x", "y", "z")))
    x, other = subject.shares()
    assert (x.provider, other.provider) == ("x", OTHER)
    assert x.share + other.share == pytest.approx(1)
    assert x.share > other.share / 2


def test_the_largest_provider_of_each_collection_is_named_first() -> None:
    clock = Clock()
    subject = window(clock, series=3)
    for _ in range(9):  # both of its providers have more than the small collections' largest
        subject.add(*observed([[0], [2]], collection="large"))
    subject.add(*observed([[0, 1], [0, 1]], collection="small"))
    subject.add(*observed([[2], [2]], collection="tiny", tenant="u"))
    named = [one for one in subject.shares() if one.provider != OTHER]
    assert {(one.tenant, one.collection, one.provider) for one in named} == {
        ("t", "large", "x"),
        ("t", "small", "x"),
        ("u", "tiny", "y"),
    }
    (rest,) = (one for one in subject.shares() if one.provider == OTHER)
    assert (rest.collection, rest.share) == ("large", pytest.approx(1 / 2))


def test_metrics_have_the_windows_values_by_configuration() -> None:
    telemetry = InMemoryTelemetry("evaluator")
    metrics = EvaluatorMetrics(telemetry)
    observation, measurement = observed([[0], [1]], at_s=time.time(), alpha=None)
    with metrics.record(pb.Observation(id="o", run_id="r")) as record:
        record.stored(observation, measurement, new=True)
    with metrics.record(pb.Observation(id="o", run_id="r")) as record:
        record.stored(observation, measurement, new=False)
    read = telemetry.metrics()
    (point,) = read["evenmesh.fairness.ee_d"].data.data_points
    assert point.value == pytest.approx(0.5**2 + 0.5**2)
    assert dict(point.attributes) == {
        "tenant": "t",
        "collection": "c",
        "retriever": "bm25",
        "reranker": "none",
        "generator": "m",
        "alpha": "",
    }
    assert "evenmesh.fairness.ee_r" not in read
    counts = read["evenmesh.evaluator.observations"].data.data_points
    assert {(one.attributes["outcome"], one.value) for one in counts} == {
        ("new", 1),
        ("duplicate", 1),
        ("refused", 0),
    }
    (lag,) = read["evenmesh.evaluator.lag"].data.data_points
    assert lag.count == 1
    (backlog,) = read["evenmesh.evaluator.backlog"].data.data_points
    assert backlog.value == 0
