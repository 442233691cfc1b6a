"""``make bench``: measures, prints, and writes docs/benchmarks.md with machine, versions and date."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import datetime
import platform
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks import bm25, mesh

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
_MARKER = "<!-- below: written by make bench -->"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _page(overhead: mesh.Overhead, words: bm25.Comparison, load_before: float) -> str:
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("grpcio", "protobuf", "numpy", "numba", "rank-bm25")
    )
    memory = psutil.virtual_memory().total / 2**30
    return f"""{_MARKER}

Measured {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC on {os.cpu_count()} cores ({_cpu()}),
{memory:.0f} GiB, Python {platform.python_version()}, {packages}. Load average before the run: {load_before:.1f}.

## The mesh beyond bare gRPC

One ask: 100 candidates of 600 characters, 20 reranked, 5 shown, 64 tokens streamed, one observation. Both sides are
five processes on one machine; models of the mesh are replaced by ones that answer at once. Medians of
{overhead.rounds} rounds, the sides in turn.

| | bare flow | mesh | ratio | target |
|---|---|---|---|---|
| p50, one caller | {overhead.bare_p50_ms:.2f} ms | {overhead.mesh_p50_ms:.2f} ms | {overhead.p50_ratio:.2f} | ≤ 1.5 |
| p99, one caller | | | {overhead.p99_ratio:.2f} | ≤ 2 |
| asks per second, {mesh.CALLERS} callers | {overhead.bare_per_s:.0f} | {overhead.mesh_per_s:.0f} | {overhead.flows_ratio:.2f} | ≥ 0.6 |

## BM25 beside rank_bm25

{words.corpus}: {words.passages:,} passages, {words.queries} questions, top {bm25.TOP}, one thread, kernel {words.kernel}.

| | p50 per query | ratio | target |
|---|---|---|---|
| `rank_bm25.BM25Okapi` | {words.reference_ms:.2f} ms | | |
| `bm25` (engine `csr`) | {words.ours_ms:.3f} ms | {words.ratio:.0f} × faster | ≥ 200 × |

Largest difference of a score: {words.largest_difference:.1e} (bound 1e-5).
"""


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the mesh's measurement")
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    print("bm25 beside rank_bm25 …", flush=True)
    words = bm25.measure()
    print("the mesh beside bare gRPC …", flush=True)
    overhead = mesh.measure(rounds=arguments.rounds)
    page = _page(overhead, words, load_before)
    print(page)
    if not arguments.no_write:
        kept = PAGE.read_text(encoding="utf-8").split(_MARKER)[0] if PAGE.exists() else "# Benchmarks\n\n"
        PAGE.write_text(kept + page, encoding="utf-8")
        print(f"written to {PAGE}")


if __name__ == "__main__":
    main()
