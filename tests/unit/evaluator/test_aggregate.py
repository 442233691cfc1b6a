"""Aggregates: whatever the order and the batches, the same in the end, and the same again from bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenmesh_evaluator.domain import (
    MEASURED,
    Exposed,
    Labels,
    Measurement,
    Observation,
    RunReport,
    Stage,
    Window,
)
from evenmesh_evaluator.reports.aggregate import Aggregate
from evenmesh_evaluator.reports.summary import Totals, report

Item = tuple[Observation, Measurement, str | None]

_SHARE = st.floats(0, 1)
_NAMES = st.lists(st.sampled_from(["", "P", "Q", "Ä/ö", "line\nbreak"]), unique=True, max_size=5)


@st.composite
def _exposed(draw: st.DrawFn) -> Exposed | None:
    names = draw(_NAMES)
    if not names:
        return None
    values = st.lists(_SHARE, min_size=len(names), max_size=len(names)).map(np.array)
    return Exposed(names, draw(values), draw(st.none() | values))


@st.composite
def _items(draw: st.DrawFn) -> list[Item]:
    items = []
    for number in range(draw(st.integers(0, 12))):
        exposed = draw(_exposed())
        stages = draw(st.dictionaries(st.sampled_from(list(Stage)), st.floats(0, 1e6), max_size=3))
        observation = Observation(
            id=str(number),
            run_id="run",
            query_id="q",
            observed_at_us=draw(st.integers(0, 10**16)),
            passage_ids=[],
            providers=[],
            shown=np.empty((1, 0), dtype=np.int64),
            answers=(),
            labels=Labels(),
            stage_ms=stages,
            degradations=draw(
                st.lists(st.sampled_from([(Stage.RERANK, "X"), (Stage.OBSERVE, "é")]), max_size=2)
            ),
        )
        measurement = Measurement(
            quantities={name: draw(st.none() | _SHARE) for name in MEASURED},
            num_rankings=draw(st.integers(1, 5)),
            num_unanswered=draw(st.integers(0, 1)),
            providers=exposed,
            passages=exposed,
        )
        items.append((observation, measurement, draw(st.sampled_from(["1", "2", "3"]))))
    return items


PEAKS = {"1": 1.0, "2": 0.5, "3": 0.0}


def _report(whole: Aggregate) -> RunReport:
    return report("run", Window.ALL, Totals(whole, PEAKS, {}), max_names=100)


def _flat(value: Any) -> Any:
    """A report as nested lists of numbers and texts, for comparing with a tolerance."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-9, abs=1e-9)
    if isinstance(value, dict):
        return {key: _flat(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_flat(one) for one in value]
    if hasattr(value, "__slots__") and not isinstance(value, str):
        return {name: _flat(getattr(value, name)) for name in value.__slots__}
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "__slots__") and not isinstance(value, str):
        return {name: _plain(getattr(value, name)) for name in value.__slots__}
    return value


def _by_name(report: RunReport) -> Any:
    """With shares in one order: of nearly the same exposure, rounding may put either first."""
    plain = _plain(report)
    for field in ("providers", "passages"):
        plain[field] = sorted(plain[field], key=lambda share: share["name"])
    return plain


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(items=_items(), seed=st.integers(0, 1000))
def test_order_and_batches_do_not_matter(items: list[Item], seed: int) -> None:
    shuffled = items.copy()
    rng = random.Random(seed)
    rng.shuffle(shuffled)
    parts = []
    while shuffled:
        size = rng.randint(1, len(shuffled))
        parts.append(Aggregate.of(shuffled[:size]))
        shuffled = shuffled[size:]
    while len(parts) > 2:  # merged in any grouping
        parts.append(Aggregate.merged([parts.pop(rng.randrange(len(parts))) for _ in range(2)]))
    assert _by_name(_report(Aggregate.merged(parts))) == _flat(_by_name(_report(Aggregate.of(items))))


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(items=_items())
def test_bytes_hold_all_of_it(items: list[Item]) -> None:
    whole = Aggregate.of(items)
    again = Aggregate.unpack(whole.pack())
    assert _report(again) == _report(whole)
    assert again.pack() == whole.pack()


def test_nothing_adds_nothing() -> None:
    assert Aggregate.merged([]).num_observations == 0
    assert Aggregate.merged([Aggregate(), Aggregate.of([])]).started_at_us is None
