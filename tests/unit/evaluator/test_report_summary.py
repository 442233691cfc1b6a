"""Reports: normalised utility by what is known now, exposure per observation, and intervals within ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evenmesh_evaluator.domain import (
    CONVERSATION,
    MEASURED,
    NORMALIZED,
    Exposed,
    Labels,
    Measurement,
    Observation,
    RunReport,
    Stage,
    Window,
)
from evenmesh_evaluator.reports.aggregate import Aggregate
from evenmesh_evaluator.reports.moments import Moments
from evenmesh_evaluator.reports.summary import Totals, report

Item = tuple[Observation, Measurement, str | None]


def _item(
    *,
    utility: float | None = None,
    key: str | None = None,
    stage_ms: float | None = None,
    exposed: Exposed | None = None,
    **quantities: float,
) -> Item:
    observation = Observation(
        id="o",
        run_id="run",
        query_id="q",
        observed_at_us=0,
        passage_ids=[],
        providers=[],
        shown=np.empty((1, 0), dtype=np.int64),
        answers=(),
        labels=Labels(),
        stage_ms={} if stage_ms is None else {Stage.RERANK: stage_ms},
    )
    values = {**dict.fromkeys(MEASURED), "expected_utility": utility, **quantities}
    return observation, Measurement(values, 1, 0, utility, exposed, exposed), key


def _report(*items: Item, max_names: int = 100, **peaks: float) -> RunReport:
    whole = Aggregate.of(items)
    return report(
        "run", Window.ALL, Totals(whole, {k[1:]: v for k, v in peaks.items()}, {}), max_names=max_names
    )


def test_utility_is_relative_to_the_largest_known() -> None:
    # Query 1: 1/4 and 1/2 of u_max 1/2; query 2: 1 of 1; query 3: u_max 0 is undefined; one has no references.
    items = [
        _item(utility=0.25, key="1"),
        _item(utility=0.5, key="1"),
        _item(utility=1.0, key="2"),
        _item(utility=0.0, key="3"),
        _item(),
    ]
    estimate = _report(*items, _1=0.5, _2=1.0, _3=0.0).estimates[NORMALIZED]
    assert estimate.mean == pytest.approx((0.25 / 0.5 + 0.5 / 0.5 + 1.0 / 1.0) / 3)
    assert (estimate.count, estimate.undefined) == (3, 2)
    expected = Moments.of([1 / 2, 1.0, 1.0]).estimate(0, 1)
    assert estimate.low == pytest.approx(expected.low)
    assert estimate.high == 1.0
    # A better answer is found in another run: what was 1/2 of the best is 1/4 of it.
    later = _report(*items, _1=1.0, _2=1.0, _3=0.0).estimates[NORMALIZED]
    assert later.mean == pytest.approx((0.25 + 0.5 + 1.0) / 3)


def test_intervals_end_where_values_do() -> None:
    # Durations 1 and 9: mean 5, t(0.975; 1) = 12.7062, half-width 12.7062 · √(32 / 1 / 2) = 50.8.
    got = _report(_item(stage_ms=1.0, ee_d_norm=0.9), _item(stage_ms=9.0, ee_d_norm=1.0))
    assert got.stages[Stage.RERANK].low == 0.0
    assert got.stages[Stage.RERANK].high == pytest.approx(5 + 12.7062 * math.sqrt(32 / 2), abs=1e-3)
    # 0.9 and 1.0 with 0 and 1: mean 0.725, t(0.975; 3) = 3.18245, half-width 0.78.
    assert (got.estimates["ee_d_norm"].low, got.estimates["ee_d_norm"].high) == (0.0, 1.0)


def test_exposure_per_observation_counts_where_it_was_not_shown() -> None:
    # P gets 1, then nothing is known of it, then 1/2: over three observations (1 + 0 + 1/2) / 3. The fourth
    # had no exposure at all. Labelled were the first two.
    got = _report(
        _item(exposed=Exposed(["P", "Q"], np.array([1.0, 1.0]), np.array([0.5, 0.25]))),
        _item(exposed=Exposed(["Q"], np.array([2.0]), np.array([1.0]))),
        _item(exposed=Exposed(["P", ""], np.array([0.5, 1.5]), None)),
        _item(),
    )
    first, second = got.providers
    assert (first.name, first.exposure, first.share, first.target) == ("Q", 3.0, 3.0 / 6.0, 1.25)
    assert (second.name, second.exposure, second.share, second.target) == ("P", 1.5, 1.5 / 6.0, 0.5)
    expected = Moments.of([1.0, 0.0, 0.5]).estimate(low=0.0)
    assert second.per_observation.mean == pytest.approx(0.5)
    assert second.per_observation.high == pytest.approx(expected.high)
    assert (second.per_observation.low, second.per_observation.count) == (0.0, 3)
    # A passage cannot get more than all attention.
    assert got.passages[1].per_observation.high == 1.0


def test_an_empty_window_has_names_for_all_and_values_for_nothing() -> None:
    got = _report()
    assert got.estimates.keys() == {*MEASURED, *CONVERSATION, NORMALIZED}
    assert {estimate.count for estimate in got.estimates.values()} == {0}
    assert (got.started_at_us, got.providers, got.passages) == (None, [], [])
