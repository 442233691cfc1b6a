"""``make bench``: measures, prints, and writes docs/benchmarks.md with machine, versions and date.

``python -m benchmarks sampling mesh`` measures these sections alone and keeps the others. Each imports what it
measures itself: a process that one of them starts is not to hold the others' packages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time

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
| p50, one caller | {found.bare_p50_ms:.2f} ms | {found.mesh_p50_ms:.2f} ms | {found.p50_ratio:.2f} | ≤ 1.5 |
| p99, one caller | | | {found.p99_ratio:.2f} | ≤ 2 |
| asks per second, {mesh.CALLERS} callers | {found.bare_per_s:.0f} | {found.mesh_per_s:.0f} | {found.flows_ratio:.2f} | ≥ 0.6 |""",
    )


def _bm25() -> tuple[str, str]:
    from benchmarks import bm25

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
    from benchmarks import sampling

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


def _drawing() -> tuple[str, str]:
    from benchmarks import drawing

    rows = "\n".join(
        f"| {one.passages:,} | {one.retriever} | {one.served_ms:.2f} | {one.served_one_added_ms:.3f} | "
        f"{100 * one.one_share:.0f} % | {one.served_added_ms:.3f} | {100 * one.share:.0f} % | "
        f"{one.search_ms:.2f} | {one.short_ms:.2f} | {one.plain_ms:.2f} | {one.pool_added_ms:.3f} | "
        f"{100 * one.engine_share:.0f} % | {one.whole_ms:.1f} | {one.whole_memory / 2**20:.0f} MiB |"
        for one in drawing.measure()
    )
    return (
        "What sampling adds to a query",
        f"""{drawing.RANKINGS} rankings of {drawing.K} at α = {drawing.ALPHA:g}, with log-probabilities, beside one ranking; one thread, p50 in milliseconds,
the two in turn for each query. The pool is the best {drawing.DEPTH}, and all of it is in both replies. First a query as a client sees it,
a process of its own over gRPC; then the same from the engine to the finished message, without the wire, where a search
alone and a reply of {drawing.K} are beside it. `dense` is without encoding the query, which takes milliseconds more. From the whole
collection every passage is scored, and the passages that are drawn, some hundreds, are in the reply (without the wire).

| passages | retriever | a query | one ranking adds | share (< 15 %) | {drawing.RANKINGS} rankings add | share (< 15 %) | search alone | one ranking, {drawing.K} in the reply | {drawing.DEPTH} in the reply | {drawing.RANKINGS} rankings add | share | drawn from the whole collection | memory of that |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
{rows}""",
    )


def _audit() -> tuple[str, str]:
    from benchmarks import audit

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
    from benchmarks import observe

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


def _bm25_sizes() -> tuple[str, str]:
    from benchmarks import bm25

    found = bm25.measure_sizes()
    speed = "\n".join(
        f"| {one.passages:,} | {one.ours_p50_ms:.3f} / {one.ours_p99_ms:.3f} | {one.okapi_p50_ms:.3f} | "
        f"{one.bm25s_p50_ms:.3f} / {one.bm25s_p99_ms:.3f} | {one.ours_p50_ms / one.bm25s_p50_ms:.2f} | "
        f"{one.bm25s_batched_ms / one.ours_batched_ms:.2f} | "
        f"{'' if one.rank_bm25_p50_ms is None else f'{one.rank_bm25_p50_ms:.1f}'} | {one.overlap:.3f} |"
        for one in found
    )
    size = "\n".join(
        f"| {one.passages:,} | {one.build_s:.1f} s | {one.build_s / one.floor_s:.2f} | {one.bm25s_build_s:.1f} s | "
        f"{one.ours_bytes / 2**20:.0f} MiB | {one.bm25s_bytes / 2**20:.0f} MiB |"
        for one in found
    )
    return (
        "BM25 by size, beside bm25s",
        f"""Generated passages of about 60 words by Zipf's law, queries of 10 such words, top {bm25.TOP}, one thread. Milliseconds a query,
p50 / p99, the engines in turn.

| passages | bm25-lucene | bm25 (Okapi) | bm25s (numba) | ours / bm25s (≤ 1.5) | batched, bm25s / ours (≥ 0.7) | rank_bm25 | overlap@100 |
|---|---|---|---|---|---|---|---|
{speed}

| passages | build from tokens | over the floor (≤ 2) | bm25s, from numbered tokens | our arrays | bm25s |
|---|---|---|---|---|---|
{size}

The floor numbers every token and makes one SciPy matrix. Cost grows in step with the passages: past a few million, a
collection belongs in several processes or in Milvus.""",
    )


def _reuse(read: int, computed: int) -> str:
    return f"{read / computed:.1f}" if computed else "none computed"


def _generation() -> tuple[str, str]:
    from benchmarks import generation

    found = asyncio.run(generation.measure())
    streams = "\n".join(
        f"| {one.model} | {one.engine} | {one.streams} | {one.first_ms:.0f} | "
        f"{one.between_ms:.1f} | {one.tokens_per_s:.0f} |"
        for one in sorted(
            found.streams, key=lambda one: (one.model, one.engine != "plain", one.engine, one.streams)
        )
    )
    batches = "\n".join(
        f"| {one.model} | {'greedy' if one.beams == 1 else f'beam {one.beams}'} | {one.plain_s * 1e3:.0f} ms | "
        f"{one.plain_s / one.ours_alone_s:.2f} | {one.ratio:.2f} | {one.ours_alone_s / one.ours_s:.2f} | {one.identical} of {one.rows} |"
        for one in found.batches
    )
    audits = "\n".join(
        f"| {one.alpha:g} | {one.samples} | {one.distinct} | {_reuse(one.read_tokens, one.computed_tokens)} | "
        f"{one.seconds:.2f} s | {one.generations:.0f} | {one.authors_s:.0f} s | {one.authors_s / one.seconds:.1f} | "
        f"{one.identical} of {one.compared} | {one.exact} of {one.compared} |"
        for one in found.audits
    )
    whole = sum(one.generations for one in found.audits)
    return (
        "Generation",
        f"""One thread of matrix products. `ragmesh-pointer` is the bundled model, with {generation.K} passages of SQuAD; `{generation.SHAPED}` has random
weights, reads about {generation.READ} tokens and writes {generation.WRITTEN}. Plain is `transformers` in float32, one by one; ours is as it comes,
in bfloat16 where the processor has it. Milliseconds, medians; a plain answer is seen at its end.

| model | engine | streams | first text | between tokens | tokens/s |
|---|---|---|---|---|---|
{streams}

Batches in this process, no encodings kept: how many times as many answers a second as plain, one by one and {found.batches[0].rows} at once,
and what the batch itself gains. Identical: the same text as plain when ours computes in float32 too.

| model | | plain, an answer | ours, one by one | ours, together | together / one by one | identical |
|---|---|---|---|---|---|---|
{batches}

An audit of one query: {generation.SAMPLES} rankings of {generation.K} from {generation.POOL} passages at each α, beam {generation.BEAMS}; what is asked twice is asked once, and
encodings of passages are kept. A generation is a question not seen before, alone: {found.generation_s * 1e3:.0f} ms. Together: the time of
{whole:.0f} generations for {sum(one.samples for one in found.audits)} answers (target ≤ 80). The authors' way keeps
answers by ordered ranking alone and generates one by one (transformers, float32): the median of {generation.TIMED}, for each that differs.

| α | rankings | distinct | tokens read / computed | time | in generations | the authors' way | its time / ours | identical to separate calls | in float32 |
|---|---|---|---|---|---|---|---|---|---|
{audits}""",
    )


def _dense() -> tuple[str, str]:
    from benchmarks import dense

    found = dense.measure()
    speed = "\n".join(
        f"| {one.vectors:,} | {one.kind} | {one.ours_p50_ms:.2f} / {one.ours_p99_ms:.2f} | {one.ours_batched_ms:.2f} | "
        f"{one.flat_p50_ms:.2f} | {one.flat_batched_ms:.2f} | {one.faiss_p50_ms:.2f} | {one.faiss_batched_ms:.2f} | "
        f"{one.numpy_batched_ms:.2f} |"
        for one in found
    )
    kinds = "\n".join(
        f"| {one.vectors:,} | {one.kind} | {', '.join(f'{k} {v}' for k, v in one.parameters.items())} | "
        f"{one.measured_recall:.3f} | {one.recall:.3f} | {one.build_s:.0f} s | {one.index_bytes / 2**20:.0f} MiB | "
        f"{one.vector_bytes / 2**20:.0f} MiB |"
        for one in found
    )
    return (
        "Dense search by size, beside FAISS and NumPy",
        f"""384 dimensions, topics and noise, top {dense.TOP}, one thread. Milliseconds a query, p50 / p99; batches of {dense.BATCH}.

| vectors | kind | ours | ours, batched | our flat | our flat, batched | FAISS flat | FAISS flat, batched | NumPy, batched |
|---|---|---|---|---|---|---|---|---|
{speed}

| vectors | kind | built with | recall@100 in its manifest | of these queries | build | index | vectors |
|---|---|---|---|---|---|---|---|
{kinds}""",
    )


def _collections() -> tuple[str, str]:
    from benchmarks import collections

    rows = "\n".join(
        f"| {one.passages:,} | {one.build_s:.0f} s | {one.disk / 2**20:.0f} MiB | {one.segments} | {1e3 * one.ingest_s:.0f} ms | "
        f"{1e3 * one.delete_s:.0f} ms | {one.merge_s:.1f} s | {one.stall_ms:.0f} ms | {one.merge_resident / 2**20:.0f} MiB | "
        f"{one.open_s:.2f} s | {one.opened_resident / 2**20:.0f} MiB | {one.query_ms:.2f} ms | {one.queried_resident / 2**20:.0f} MiB |"
        for one in collections.measure()
    )
    return (
        "Live collections by size",
        f"""Generated passages of about 60 words, BM25 alone, one thread; every ingest durable and served when it ends.

| passages | build | disk | segments | 1,000 more | 1,000 fewer | merge all | longest stall | memory of the merge | open and first answer | memory then | query, p50 | memory after 200 |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
{rows}""",
    )


def _ranking() -> tuple[str, str]:
    from benchmarks import ranking

    found = asyncio.run(ranking.measure())
    overheads = "\n".join(
        f"| {one.reranker} | {one.depth} | {one.rank_ms:.0f} ms | {one.alone_ms:.0f} ms | {one.share:.2f} | {one.ratio:.1f} |"
        for one in sorted(found.overheads, key=lambda one: (one.reranker != "rankrag", one.depth))
    )
    speeds = "\n".join(
        f"| {one.name} | {one.pairs_per_s:.0f} | {one.pairs_per_s / found.bound:.2f} | "
        f"{one.pairs_per_s / found.speeds[1].pairs_per_s:.1f} | {one.tau:.4f} |"
        for one in found.speeds
    )
    stopping = "\n".join(
        f"| {one.count} | {one.tolerance:g} | {one.stopped} of {one.questions} | {100 * one.judged:.0f} % |"
        for one in found.stopping
    )
    return (
        "Ranking",
        f"""{ranking.QUESTIONS} dev questions of squad-open with BM25's best passages; one thread of matrix products, everything in this
process, medians. Ranking and answering beside answering alone, as the paper's Figure 5 (there 1.9 to 7 times): `rankrag` judges and
answers with the bundled model, the cross-encoder is of MiniLM-L6's shape. Answers are greedy, from {ranking.SHOWN} passages. What rankrag has
read to judge it does not read again to answer; the cross-encoder's ranking leaves all of it to do.

| reranker | passages | ranking | answering alone | answering after ranking / alone | together / alone |
|---|---|---|---|---|---|
{overheads}

{ranking.PAIRS} pairs of {found.tokens:.0f} tokens a request, the ways in turn. The bound is what float32 matrix products alone would take at the
{found.gflops:.0f} GFLOP/s that a square one reaches here: {found.bound:.0f} pairs/s (targets: ≥ 0.6, with AMX ≥ 1.6; ≥ 3 × predict; Kendall ≥ 0.99).

| | pairs/s | of the bound | of predict | Kendall's τ to float32 |
|---|---|---|---|---|
{speeds}

{ranking.SMALL} pairs on {found.cores} cores: {found.small_ms:.0f} ms (target ≤ 200).

Where judging {found.stopping[0].pool} passages stops when only the best are wanted (`top_k`, `tolerance`): at 0 the best are exactly those of
judging all.

| best wanted | tolerance | questions stopped early | passages judged |
|---|---|---|---|
{stopping}""",
    )


def _swapping() -> tuple[str, str]:
    from benchmarks import swapping

    rows = "\n".join(
        f"| {one.name} | {one.answered:,} | {one.failed} | {one.swaps} | {one.versions} | {one.p50_ms:.0f} | {one.p99_ms:.0f} | {one.ratio:.2f} |"
        for one in asyncio.run(swapping.measure())
    )
    return (
        "Reranking while versions are swapped",
        f"""One reranker process with a cross-encoder of MiniLM-L6's shape, {swapping.CLIENTS} clients over gRPC, {swapping.PAIRS} pairs a request, the reranker busy
about half of the time. Versions are promoted and rolled back every {swapping.SWAP_EVERY_S:g} s; the training is of a model of the same shape, at the
lowest priority. Milliseconds; p99 beside that with nothing else (target ≤ 2, no failures); of fewer than a hundred it is little
below the slowest.

| meanwhile | answered | failed | swaps | versions that answered | p50 | p99 | ratio |
|---|---|---|---|---|---|---|---|
{rows}""",
    )


def _retrieval() -> tuple[str, str]:
    from benchmarks import retrieval

    began = time.perf_counter()
    found = retrieval.measure()
    return retrieval.HEADING, retrieval.section(found, (time.perf_counter() - began) / 60)


def _overload() -> tuple[str, str]:
    from benchmarks import overload

    pace, seconds, factor, seed = overload.Pace(), 30.0, 4.0, 7
    found = overload.measure(pace, seconds=seconds, factor=factor, seed=seed)
    return (
        "Four times what it can bear",
        overload.report(found, pace, seconds=seconds, factor=factor, seed=seed),
    )


def _scale_out() -> tuple[str, str]:
    from benchmarks import scale_out

    return scale_out.HEADING, scale_out.section(scale_out.measure())


def _telemetry() -> tuple[str, str]:
    from benchmarks import telemetry

    return telemetry.HEADING, telemetry.section(telemetry.measure())


SECTIONS = {
    "mesh": (_mesh, ("grpcio", "protobuf")),
    "bm25": (_bm25, ("numpy", "numba", "rank-bm25")),
    "bm25-sizes": (_bm25_sizes, ("numpy", "numba", "bm25s", "rank-bm25")),
    "dense": (_dense, ("numpy", "faiss-cpu")),
    "collections": (_collections, ("numpy", "numba")),
    "retrieval": (_retrieval, ("numpy", "faiss-cpu", "torch", "sentence-transformers", "ir-measures")),
    "sampling": (_sampling, ("numpy", "numba")),
    "drawing": (_drawing, ("numpy", "numba", "faiss-cpu", "grpcio", "protobuf")),
    "audit": (_audit, ("numpy",)),
    "observe": (_observe, ("sqlalchemy", "aiosqlite")),
    "generation": (_generation, ("torch", "transformers", "ctranslate2", "tritonclient")),
    "ranking": (_ranking, ("torch", "transformers", "sentence-transformers")),
    "swapping": (_swapping, ("torch", "transformers", "grpcio")),
    "overload": (_overload, ("grpcio", "protobuf")),
    "scale-out": (_scale_out, ("grpcio", "protobuf")),
    "telemetry": (_telemetry, ("grpcio", "opentelemetry-sdk")),
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
