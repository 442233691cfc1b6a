"""How soon the console can be used, in Debian's Chromium with an empty cache."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from benchmarks.mesh import ingest, stand_in_mesh
from evenmesh_mesh.health import http_url
from evenmesh_mesh.services import GATEWAY
from tests.support.console_page import chromium

HEADING: Final = "The console's first load"
LOADS: Final = 11
_TIMES: Final = """() => {
  const [page] = performance.getEntriesByType("navigation");
  const others = performance.getEntriesByType("resource");
  const files = [page, ...others.filter((one) => /\\/console\\//.test(one.name))];
  const painted = performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? NaN;
  return [painted, files.reduce((sum, one) => sum + one.transferSize, 0)];
}"""


class FirstLoad(NamedTuple):
    """Medians over the loads, each in a browser profile of its own.

    Attributes:
        painted_ms: until something is drawn.
        usable_ms: until a question can be typed and asked.
        kilobytes: of the page's own files as they are sent.
    """

    painted_ms: float
    usable_ms: float
    kilobytes: float


def measure() -> FirstLoad:
    """Load the console again and again."""
    with (
        tempfile.TemporaryDirectory(prefix="evenmesh-bench-") as home,
        stand_in_mesh(Path(home), "benchmarks.stand_in_generator", {}, more=(GATEWAY,)) as state,
    ):
        asyncio.run(ingest(state.addresses["retriever"]))
        url = f"{http_url(state.services[GATEWAY.name].address)}/console/"
        found = []
        with chromium() as browser:
            for _ in range(LOADS):
                with browser.new_context() as profile:
                    page = profile.new_page()
                    began = time.perf_counter()
                    page.goto(url)
                    page.get_by_label("Question", exact=True).fill("Which river?")
                    page.locator("button:not([disabled])", has_text="Ask").wait_for()
                    usable_ms = 1e3 * (time.perf_counter() - began)
                    painted_ms, sent = page.evaluate(_TIMES)
                    found.append((painted_ms, usable_ms, sent / 1e3))
    return FirstLoad(*(median(column) for column in zip(*found, strict=True)))


def section(found: FirstLoad) -> str:
    """Return what was measured as a section of docs/science/benchmarks.md."""
    return f"""Medians of {LOADS} loads of `/console/`, each with an empty cache, from the address to a page
where a question can be asked.

| | | target |
|---|---|---|
| first drawn | {found.painted_ms:.0f} ms | |
| a question can be asked | {found.usable_ms:.0f} ms | ≤ 1,000 ms |
| sent, compressed | {found.kilobytes:.0f} kB | ≤ 300 kB |"""
