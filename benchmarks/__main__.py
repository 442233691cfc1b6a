"""``make bench``: measures, prints, and writes docs/science/benchmarks.md with machine, versions and date.

``python -m benchmarks sampling mesh`` measures these sections alone and keeps the others. Each imports what
it measures itself: a process that one of them starts is not to hold the others' packages.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import page


def _mesh() -> tuple[str, str]:
    from benchmarks import mesh

    found = mesh.measure(rounds=5)
    return (
        "The mesh beyond bare gRPC",
        f"""One ask: 100 candidates of 600 characters, 20 reranked, 5 shown, 64 tokens streamed, one observation. Both sides are
five processes on one machine; models of the mesh are replaced by ones that answer at once. Medians of
{found.rounds} rounds, the sides in turn.

| | bare flow | mesh | ratio | target |
|---|---|---|---|---|
| p50, one caller | {found.first_p50_ms:.2f} ms | {found.second_p50_ms:.2f} ms | {found.p50_ratio:.2f} | ≤ 1.5 |
| p99, one caller | | | {found.p99_ratio:.2f} | ≤ 2 |
| asks per second, {mesh.CALLERS} callers | {found.first_per_s:.0f} | {found.second_per_s:.0f} | {found.flows_ratio:.2f} | ≥ 0.6 |""",
    )


def _bm25() -> tuple[str, str]:
    from benchmarks import bm25

    return "BM25 beside rank_bm25", bm25.measure()


def _sampling() -> tuple[str, str]:
    from benchmarks import sampling

    return (
        "Plackett–Luce sampling beside Gumbel noise with argpartition",
        f"""{sampling.RANKINGS} rankings of {sampling.DEPTH} items at α = {sampling.ALPHA:g}, scores in descending order, one thread; milliseconds.
The peer draws noise for every item of every ranking (in parts, so that it fits in memory). Both are exact.

{page.table(sampling.measure())}""",
    )


def _drawing() -> tuple[str, str]:
    from benchmarks import drawing

    return (
        "What sampling adds to a query",
        f"""{drawing.RANKINGS} rankings of {drawing.K} at α = {drawing.ALPHA:g}, with log-probabilities, beside one ranking; one thread, p50 in milliseconds,
the two in turn for each query. The pool is the best {drawing.DEPTH}, and all of it is in both replies. First a query as a client sees it,
a process of its own over gRPC; then the same from the engine to the finished message, without the wire, where a search
alone and a reply of {drawing.K} are beside it. `dense` is without encoding the query, which takes milliseconds more. From the whole
collection every passage is scored, and the passages that are drawn, some hundreds, are in the reply (without the wire).

{page.table(drawing.measure())}""",
    )


def _audit() -> tuple[str, str]:
    from benchmarks import audit

    return "Exposure of a whole audit", audit.measure()


def _observe() -> tuple[str, str]:
    from benchmarks import observe

    return "Observing", asyncio.run(observe.measure())


def _bm25_sizes() -> tuple[str, str]:
    from benchmarks import bm25

    speed, size = zip(*bm25.measure_sizes(), strict=True)
    return (
        "BM25 by size, beside bm25s",
        f"""Generated passages of about 60 words by Zipf's law, queries of 10 such words, top {bm25.TOP}, one thread. Milliseconds a query,
p50 / p99, the engines in turn.

{page.table(speed)}

{page.table(size)}

The floor numbers every token and makes one SciPy matrix. Cost grows in step with the passages: past a few million, a
collection belongs in several processes or in Milvus.""",
    )


def _generation() -> tuple[str, str]:
    from benchmarks import generation

    return "Generation", asyncio.run(generation.measure())


def _dense() -> tuple[str, str]:
    from benchmarks import dense

    speed, kinds = zip(*dense.measure(), strict=True)
    return (
        "Dense search by size, beside FAISS and NumPy",
        f"""384 dimensions, topics and noise, top {dense.TOP}, one thread. Milliseconds a query, p50 / p99; batches of {dense.BATCH}.

{page.table(speed)}

{page.table(kinds)}""",
    )


def _collections() -> tuple[str, str]:
    from benchmarks import collections

    return (
        "Live collections by size",
        f"""Generated passages of about 60 words, BM25 alone, one thread; every ingest durable and served when it ends.

{page.table(collections.measure())}""",
    )


def _engines() -> tuple[str, str]:
    from benchmarks import engines

    return "The cross-encoder by engine", engines.measure()


def _ranking() -> tuple[str, str]:
    from benchmarks import ranking

    return "Ranking", asyncio.run(ranking.measure())


def _swapping() -> tuple[str, str]:
    from benchmarks import swapping

    return (
        "Reranking while versions are swapped",
        f"""One reranker process with a cross-encoder of MiniLM-L6's shape, {swapping.CLIENTS} clients over gRPC, {swapping.PAIRS} pairs a request, the reranker busy
about half of the time. Versions are promoted and rolled back every {swapping.SWAP_EVERY_S:g} s; the training is of a model of the same shape, at the
lowest priority. Milliseconds; p99 beside that with nothing else (target ≤ 2, no failures); of fewer than a hundred it is little
below the slowest.

{page.table(asyncio.run(swapping.measure()))}""",
    )


def _overload() -> tuple[str, str]:
    from benchmarks import overload

    pace, seconds, factor, seed = overload.Pace(), 30.0, 4.0, 7
    found = overload.measure(pace, seconds=seconds, factor=factor, seed=seed)
    return (
        "Four times what it can bear",
        overload.report(found, pace, seconds=seconds, overload_s=30.0, factor=factor, seed=seed),
    )


def _own(name: str) -> tuple[str, str]:
    """Return the section of a module that writes it itself."""
    module = importlib.import_module(f"benchmarks.{name}")
    return module.HEADING, module.section(module.measure())


SECTIONS: dict[str, tuple[Callable[[], tuple[str, str]], tuple[str, ...]]] = {
    "mesh": (_mesh, ("grpcio", "protobuf")),
    "bm25": (_bm25, ("numpy", "numba", "rank-bm25")),
    "bm25-sizes": (_bm25_sizes, ("numpy", "numba", "bm25s", "rank-bm25")),
    "dense": (_dense, ("numpy", "faiss-cpu")),
    "collections": (_collections, ("numpy", "numba")),
    "retrieval": (
        partial(_own, "retrieval"),
        ("numpy", "faiss-cpu", "torch", "sentence-transformers", "ir-measures"),
    ),
    "reading": (
        partial(_own, "reading"),
        ("pypdfium2", "python-docx", "python-pptx", "openpyxl", "lxml", "markdown-it-py", "tokenizers"),
    ),
    "sampling": (_sampling, ("numpy", "numba")),
    "targets": (partial(_own, "targets"), ("numpy", "scipy")),
    "drawing": (_drawing, ("numpy", "numba", "faiss-cpu", "grpcio", "protobuf")),
    "audit": (_audit, ("numpy",)),
    "observe": (_observe, ("sqlalchemy", "aiosqlite")),
    "observation-cost": (partial(_own, "observation_cost"), ("sqlalchemy", "asyncpg", "redis")),
    "generation": (_generation, ("torch", "transformers", "ctranslate2", "tritonclient")),
    "engines": (_engines, ("torch", "openvino", "transformers", "sentence-transformers")),
    "ranking": (_ranking, ("torch", "transformers", "sentence-transformers")),
    "swapping": (_swapping, ("torch", "transformers", "grpcio")),
    "overload": (_overload, ("grpcio", "protobuf")),
    "scale-out": (partial(_own, "scale_out"), ("grpcio", "protobuf")),
    "idle": (partial(_own, "idle"), ("torch", "openvino", "transformers", "numba")),
    "gateway": (partial(_own, "gateway"), ("grpcio", "starlette", "uvicorn")),
    "console": (partial(_own, "console"), ("starlette", "uvicorn", "playwright")),
    "telemetry": (partial(_own, "telemetry"), ("grpcio", "opentelemetry-sdk")),
    "statements": (partial(_own, "statements"), ("grpcio", "cryptography")),
}


def main() -> None:
    """Measure and write."""
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
