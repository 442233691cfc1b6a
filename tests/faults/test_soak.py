"""A mesh under load for long: memory and descriptors of every service stay as they are.

It runs where ``EVENMESH_SOAK_MESH_S`` says for how long: 3600 is the full size, 600 that of CI; ``pytest -s``
shows the slopes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from scipy.stats import linregress
from scipy.stats import t as student

from tests.faults.chaos.load import Load, Seen
from tests.faults.chaos.world import World
from tests.support.postgres import Postgres, running

_WANTED = os.environ.get("EVENMESH_SOAK_MESH_S", "")
LASTS_S = float(_WANTED or "600")
SAMPLES = 60
WARM = 0.4
"""Share of the time in which caches fill and what is imported late is imported."""
# Of what a service has once it is warm, over the whole time: what is observed at random is within it.
MOST_GROWTH = 0.1 if LASTS_S >= 600 else 0.5
MOST_DESCRIPTORS = 20
PASSAGES = 2000
"""What each writer has at most, so that it is the same work for as long as it lasts, and not more and more data."""

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(LASTS_S + 400),
    pytest.mark.skipif(not _WANTED, reason="EVENMESH_SOAK_MESH_S=600 runs it"),
]


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with running() as server:
        yield server


async def test_memory_and_descriptors_are_flat(postgres: Postgres, tmp_path: Path) -> None:
    seen = Seen()
    times: list[float] = []
    memory: dict[str, list[float]] = defaultdict(list)
    descriptors: dict[str, list[float]] = defaultdict(list)
    async with World(tmp_path, postgres) as world:
        load = Load(world.addresses, seen, passages=PASSAGES)
        await load.begin()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while (now := loop.time() - begun) < LASTS_S:
            if now > WARM * LASTS_S:
                times.append(now)
                for name, service in world.services.items():
                    process = psutil.Process(service.pid)
                    memory[name].append(process.memory_info().rss)
                    descriptors[name].append(process.num_fds())
            await asyncio.sleep(LASTS_S / SAMPLES)
        await load.end()
    slopes = {
        name: {"bytes/s": _slope(times, memory[name]), "descriptors/s": _slope(times, descriptors[name])}
        for name in memory
    }
    reported = {"seconds": LASTS_S, "asks": seen.started, "failed": seen.failed, "slope, low, high": slopes}
    sys.stderr.write(json.dumps(reported, indent=1) + "\n")
    assert seen.observed
    assert not seen.untyped
    for name, values in memory.items():
        # That it grows by more than this must not be what the samples say, all uncertainty granted.
        low = slopes[name]["bytes/s"][1]
        assert low * LASTS_S <= MOST_GROWTH * values[0], f"the memory of the {name} grows"
        assert max(descriptors[name]) - descriptors[name][0] <= MOST_DESCRIPTORS, (
            f"the {name} opens more and more"
        )


def _slope(times: list[float], values: list[float]) -> tuple[float, float, float]:
    """The least-squares slope and its 95 % interval."""
    fit = linregress(times, values)
    half = float(student.ppf(0.975, len(times) - 2)) * fit.stderr
    return fit.slope, fit.slope - half, fit.slope + half
