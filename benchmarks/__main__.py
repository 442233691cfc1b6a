"""``make bench``: measures, prints, and writes docs/benchmarks.md with machine, versions and date.

``python -m benchmarks sampling mesh`` measures these sections alone and keeps the others.
"""

from __future__ import annotations

import argparse
import asyncio
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import audit, bm25, mesh, observe, page, sampling


def _mesh() -> tuple[str, str]:
    found = mesh.measure(rounds=5)
    return (
        "The mesh beyond bare gRPC",
        f"""One ask: 100 candidates of 600 characters, 20 reranked, 5 shown, 64 tokens streamed, one observation. Both sides are
five processes on one machine; models of the mesh are replaced by ones that answer at once. Medians of
{found.rounds} rounds, the sides in turn.

| | bare flow | mesh | ratio | target |
|---|---|---|---|---|
| p50, one caller | {found.bare_p50_ms:.2f} ms | {found.mesh_p50_ms:.2f} ms | {found.p50_ratio:.2f} | ≤ 1.5 |
| p99, one caller | | | {found.p99_ratio:.2f} | ≤ 2 |
| asks per second, {mesh.CALLERS} callers | {found.bare_per_s:.0f} | {found.mesh_per_s:.0f} | {found.flows_ratio:.2f} | ≥ 0.6 |""",
    )


def _bm25() -> tuple[str, str]:
    found = bm25.measure()
    return (
        "BM25 beside rank_bm25",
        f"""{found.corpus}: {found.passages:,} passages, {found.queries} questions, top {bm25.TOP}, one thread, kernel {found.kernel}.

| | p50 per query | ratio | target |
|---|---|---|---|
| `rank_bm25.BM25Okapi` | {found.reference_ms:.2f} ms | | |
| `bm25` (engine `csr`) | {found.ours_ms:.3f} ms | {found.ratio:.0f} × faster | ≥ 200 × |

Largest difference of a score: {found.largest_difference:.1e} (bound 1e-5).""",
    )


def _sampling() -> tuple[str, str]:
    rows = "\n".join(
        f"| {one.items:,} | {one.gumbel_ms:.2f} | {one.numpy_ms:.2f} | {one.numba_ms:.3f} | {one.ratio:.0f} × |"
        for one in sampling.measure()
    )
    return (
        "Plackett–Luce sampling beside Gumbel noise with argpartition",
        f"""{sampling.RANKINGS} rankings of {sampling.DEPTH} items at α = {sampling.ALPHA:g}, scores in descending order, one thread; milliseconds.
The peer draws noise for every item of every ranking (in parts, so that it fits in memory). Both are exact.

| items | Gumbel + argpartition | ragcore, NumPy | ragcore, numba | peer / NumPy |
|---|---|---|---|---|
{rows}""",
    )


def _audit() -> tuple[str, str]:
    found = audit.measure()
    return (
        "Exposure of a whole audit",
        f"""{found.queries:,} queries × {found.rankings} rankings of {found.k} from {audit.POOL} candidates, {found.file_mib:.0f} MiB of JSON lines, one process.

| | |
|---|---|
| reading and checking every record | {found.read_s:.1f} s |
| reading, exposure of every query, bootstrap of the means | {found.study_s:.1f} s |
| peak memory | {found.peak_mib:.0f} MiB |
| peak memory with a tenth of the queries | {found.tenth_peak_mib:.0f} MiB |""",
    )


def _observe() -> tuple[str, str]:
    found = asyncio.run(observe.measure())
    return (
        "Observing",
        f"""Events of {found.num_rankings} rankings of {found.k} from {found.candidates} candidates, with labels; SQLite on this machine's disk, every event durable
before it is acknowledged.

| | | target |
|---|---|---|
| events a second, many on their way | {found.events_per_s:.0f} | |
| one event alone, until it is durable | {found.alone_ms:.1f} ms | |
| store's cost of an event after {found.early:,} events, {found.commit} a commit | {found.early_ms:.2f} ms | |
| the same after {found.events:,} events | {found.late_ms:.2f} ms | |
| ratio | {found.ratio:.2f} | ≤ 1.2 |""",
    )


SECTIONS = {
    "mesh": (_mesh, ("grpcio", "protobuf")),
    "bm25": (_bm25, ("numpy", "numba", "rank-bm25")),
    "sampling": (_sampling, ("numpy", "numba")),
    "audit": (_audit, ("numpy",)),
    "observe": (_observe, ("sqlalchemy", "aiosqlite")),
}


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all"
    )
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.sections) - set(SECTIONS)):
        parser.error(f"no such section: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
    measured = {}
    for name in arguments.sections or SECTIONS:
        print(f"{name} …", flush=True)
        load = os.getloadavg()[0]
        measure, packages = SECTIONS[name]
        heading, body = measure()
        measured[heading] = f"{page.stamp(load, packages)}\n\n{body}"
        print(f"\n## {heading}\n\n{measured[heading]}\n", flush=True)
    if not arguments.no_write:
        page.write(measured)
        print(f"written to {page.PATH}")


if __name__ == "__main__":
    main()
