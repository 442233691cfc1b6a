"""The exposure study of a file of 10,000 queries × 100 rankings: how long, and in how much memory."""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

QUERIES = 10_000
RANKINGS = 100
K = 5
POOL = 20
"""Candidates of each query."""


def measure(queries: int = QUERIES, rankings: int = RANKINGS) -> str:
    """Write the file, study it in a process of its own, and remove it; return the section of the page."""
    with tempfile.TemporaryDirectory() as folder:
        path, tenth = Path(folder) / "audit.jsonl", Path(folder) / "tenth.jsonl"
        _write(path, queries, rankings)
        _write(tenth, queries // 10, rankings)
        read_s, study_s, peak = _in_a_process(path)
        _, _, tenth_peak = _in_a_process(tenth)
        size = path.stat().st_size / 2**20
    return f"""{queries:,} queries × {rankings} rankings of {K} from {POOL} candidates,
{size:.0f} MiB of JSON lines in the page cache, one process.

| | |
|---|---|
| reading and checking every record | {read_s:.1f} s |
| reading, exposure of every query, bootstrap of the means | {study_s:.1f} s |
| peak memory | {peak / 1024:.0f} MiB |
| peak memory with a tenth of the queries | {tenth_peak / 1024:.0f} MiB |"""


def _write(path: Path, queries: int, rankings: int) -> None:
    rng = np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as stream:
        for query in range(queries):
            orders = np.argsort(rng.random((rankings, POOL)), axis=1)[:, :K].tolist()
            for sample, order in enumerate(orders):
                record = {
                    "query_id": f"q{query}",
                    "alpha": 1.0,
                    "sample": sample,
                    "ranking": [f"q{query}-p{place}" for place in order],
                }
                stream.write(json.dumps(record) + "\n")


def _in_a_process(path: Path) -> tuple[float, float, int]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_study, (path,))


def _study(path: Path) -> tuple[float, float, int]:
    from evenmesh_lab.files import Labels, read_audits
    from evenmesh_lab.studies import exposure

    started = time.perf_counter()
    names = [query.query_id for query in read_audits([path])]
    read = time.perf_counter()
    labels = Labels(path, {name: {f"{name}-p{place}": 1.0 for place in range(3)} for name in names}, {})
    found = exposure.measure(read_audits([path]), labels, k=K)
    if len(found.rows) != len(names):
        raise RuntimeError(f"{len(found.rows)} rows of {len(names)} queries")
    done = time.perf_counter()
    return read - started, done - read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
