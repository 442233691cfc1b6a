"""Odd bytes to everything that reads what a stranger may have written: taken, or refused in its own words.

How many for each: ``EVENMESH_FUZZ_INPUTS``. A million, led by coverage: ``python -m tests.fuzz parsers``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import parsers, wire

INPUTS = int(os.environ.get("EVENMESH_FUZZ_INPUTS", "25"))

pytestmark = pytest.mark.timeout(120 + INPUTS)


@st.composite
def _inputs(draw: Any, seeds: tuple[bytes, ...]) -> bytes:
    rng = draw(st.randoms(use_true_random=False))
    seed = draw(st.sampled_from(seeds))
    data = wire.mutated(seed, rng)
    return draw(
        st.sampled_from(
            (seed, data, data, wire.mutated(data, rng), wire.text(rng)[:8192], draw(st.binary(max_size=200)))
        )
    )


@pytest.mark.parametrize("name", parsers.TARGETS)
def test_whatever_is_read_is_taken_or_refused(name: str) -> None:
    target = parsers.TARGETS[name]
    for seed in target.seeds:
        target.try_on(seed)
    descriptors = psutil.Process().num_fds()

    @settings(
        max_examples=INPUTS,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(_inputs(target.seeds))
    def read(data: bytes) -> None:
        target.try_on(data)

    read()
    assert psutil.Process().num_fds() <= descriptors + 4


@pytest.mark.parametrize(
    ("name", "path"), parsers.known(), ids=lambda one: one if isinstance(one, str) else one.name
)
def test_what_was_once_read_wrongly_is_not_any_more(name: str, path: Path) -> None:
    parsers.TARGETS[name].try_on(path.read_bytes())
