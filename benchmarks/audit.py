"""The exposure study of a file of 10,000 queries × 100 rankings: how long, and in how much memory."""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

QUERIES = 10_000
RANKINGS = 100
K = 5
POOL = 20
"""Candidates of each query."""


@dataclass(frozen=True)
class Audit:
    """Measured on one core, the file in the page cache."""

    queries: int
    rankings: int
    """Of each query."""
    k: int
    file_mib: float
    read_s: float
    """Reading and checking every record, nothing measured."""
    study_s: float
    """Reading, exposure of every query, and the bootstrap of its means."""
    peak_mib: float
    """Peak memory of the process that did it."""
    tenth_peak_mib: float
    """Peak memory with a tenth of the queries: what does not grow with them."""


def measure(queries: int = QUERIES, rankings: int = RANKINGS) -> Audit:
    """Writes the file, studies it in a process of its own, and removes it."""
    with tempfile.TemporaryDirectory() as folder:
        path, tenth = Path(folder) / "audit.jsonl", Path(folder) / "tenth.jsonl"
        _write(path, queries, rankings)
        _write(tenth, queries // 10, rankings)
        read_s, study_s, peak = _in_a_process(path)
        _, _, tenth_peak = _in_a_process(tenth)
        return Audit(
            queries, rankings, K, path.stat().st_size / 2**20, read_s, study_s, peak / 1024, tenth_peak / 1024
        )


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
    from raglab.files import Labels, read_audits
    from raglab.studies import exposure

    started = time.perf_counter()
    names = [query.query_id for query in read_audits([path])]
    read = time.perf_counter()
    labels = Labels(path, {name: {f"{name}-p{place}": 1.0 for place in range(3)} for name in names}, {})
    found = exposure.measure(read_audits([path]), labels, k=K)
    if len(found.rows) != len(names):
        raise RuntimeError(f"{len(found.rows)} rows of {len(names)} queries")
    done = time.perf_counter()
    return read - started, done - read, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
