"""An evaluator as a process of its own, which already has runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import URL

from evenmesh_evaluator.backends.sql import SqlObservationStore
from evenmesh_evaluator.domain import Labels, Observation
from evenmesh_evaluator.observations.scores import measure
from tests.support.killable import Killable, serving


@contextmanager
def with_runs(folder: Path, runs: int) -> Iterator[str]:
    """Give the address of an evaluator with as many runs, of one observation each: ``run-0``, the oldest, and on."""
    file = folder / "evaluator" / "observations.db"
    file.parent.mkdir()
    with ThreadPoolExecutor(1) as pool:  # this thread may have an event loop, as Playwright's has
        pool.submit(asyncio.run, _fill(file, runs)).result()
    evaluator = Killable("evenmesh_evaluator", "evaluator", folder)
    with serving(evaluator):
        yield evaluator.address


async def _fill(file: Path, runs: int) -> None:
    store = SqlObservationStore(URL.create("sqlite+aiosqlite", database=str(file)))
    await store.open()
    one = Observation(
        id="",
        run_id="",
        query_id="q",
        observed_at_us=1_000_000,
        passage_ids=["a"],
        providers=["P"],
        shown=np.array([[0]]),
        answers=(),
        labels=Labels(),
    )
    measured = measure(one)
    await store.append([(replace(one, id=f"o-{i}", run_id=f"run-{i}"), measured) for i in range(runs)])
    await store.close()
