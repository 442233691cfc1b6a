"""What computes the bundled cross-encoder on a CPU: PyTorch, OpenVINO or sentence-transformers."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from scipy.stats import kendalltau
from sentence_transformers import CrossEncoder

from benchmarks import page, products
from benchmarks.generation import RetrievedQuestion, squad
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker import bundled
from evenmesh_reranker.backends.adapters import LowRankAdapter
from evenmesh_reranker.backends.compiled_encoder import CompiledAdapter, CompiledLoader
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader
from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.models.pairs import passage_text
from evenmesh_reranker.ports import Adapter, Assigned, LoadedModel
from evenmesh_training.online import low_rank

PAIRS = 20
"""Pairs of a request, as an ask has them."""
QUESTIONS = 6
RANK = 8
"""Rank of the adapter, which changes every linear layer."""

Way = Callable[[RetrievedQuestion], Awaitable[Sequence[float]]]


class _OneForAll:
    """One model, and one adapter or none, whoever asks."""

    def __init__(self, model: LoadedModel, adapter: Adapter | None) -> None:
        self._assigned = Assigned(model, adapter)

    async def model_for(self, agent: Agent) -> Assigned:
        return self._assigned


def measure(*, rounds: int = 12) -> str:
    """Measure one after the other, the ways in turn.

    Returns:
        The section of the page.
    """
    return asyncio.run(_measure(rounds))


async def _measure(rounds: int) -> str:
    asked = squad(QUESTIONS, PAIRS)
    cores = usable_cores()
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = bundled.assemble(Path(made) / "bundled")
        pool = ComputePool(1 + cores, "bench")
        stack.callback(pool.close)
        exact, narrow = (EncoderLoader(Placement.choose("cpu", dtype)) for dtype in ("float32", "auto"))
        compiled = CompiledLoader(
            "auto",
            parallel=cores,
            conversions=Conversions(Path(made) / "openvino"),
            required=True,
            threads=1,
        )
        reference, by_torch = (_loaded(one, folder) for one in (exact, narrow))
        by_openvino = compiled.full(folder, "v", provenance="bench", created_at=datetime.now(UTC))
        adapter = _adapter(reference)
        arrays = {name: (down.numpy(), up.numpy()) for name, (down, up) in adapter.pairs.items()}
        rerankers = {
            "torch": reranker(by_torch, None, pool),
            "openvino": reranker(by_openvino, None, pool),
            "torch, adapted": reranker(by_torch, adapter, pool),
            "openvino, adapted": reranker(by_openvino, CompiledAdapter("a", arrays), pool),
        }
        dtype = narrow.placement.dtype_name
        peer = CrossEncoder(str(folder), device="cpu")
        ways: dict[str, tuple[Way, int]] = {
            "`CrossEncoder.predict`, float32": (partial(_predicted, peer), cores),
            f"PyTorch, {dtype}": (partial(_scored, rerankers["torch"]), cores),
            f"OpenVINO, {dtype}": (partial(_scored, rerankers["openvino"]), 1),
            f"PyTorch, {dtype}, an adapted agent": (partial(_scored, rerankers["torch, adapted"]), cores),
            f"OpenVINO, {dtype}, an adapted agent": (partial(_scored, rerankers["openvino, adapted"]), 1),
        }
        wanted = {
            adapted: [_in_float32(reference, one, change) for one in asked]
            for adapted, change in ((False, None), (True, adapter))
        }
        table, lengths = await _beside(ways, asked, wanted, rounds), _lengths(reference, asked)
        torch.set_num_threads(cores)
        rate = max(products.gflops(narrow.placement.dtype) for _ in range(rounds))
        torch.set_num_threads(1)
        for one in rerankers.values():
            await one.close()
    least_ms = median(sum(map(products.operations, some)) for some in lengths) / rate / 1e6
    tokens = mean(map(mean, lengths))
    return f"""Requests of {PAIRS} pairs of {tokens:.0f} tokens, one at a time, {cores} cores, in turn:
questions of squad-open with BM25's best passages, ranked by the bundled cross-encoder. The adapter has
rank {RANK} and changes every linear layer. Processor time is that of all threads: what a request costs where
other programs compute too. Kendall's τ is to float32.

{page.table(table)}

The matrix products of such a request alone would take {least_ms:.0f} ms at the {rate:.0f} GFLOP/s that a
square one in {dtype} reaches on all {cores} cores."""


def _loaded(loader: EncoderLoader, folder: Path) -> Encoder:
    return loader.full(folder, "v", provenance="bench", created_at=datetime.now(UTC))


def _adapter(model: Encoder) -> LowRankAdapter:
    found = low_rank.fresh(model.encoder.model, layers=".*", rank=RANK, seed=0)
    generator = torch.Generator().manual_seed(0)
    for _, up in found.pairs.values():
        up.normal_(0, 0.02, generator=generator)
    return found


def reranker(model: LoadedModel, adapter: Adapter | None, pool: ComputePool) -> CrossEncoderReranker:
    """Return a reranker with the settings' defaults: one model, and one adapter or none, for all."""
    return CrossEncoderReranker(
        _OneForAll(model, adapter), pool=pool, batch_size=16, batch_tokens=4096, max_delay_s=0.002
    )


async def _beside(
    ways: dict[str, tuple[Way, int]],
    asked: Sequence[RetrievedQuestion],
    wanted: dict[bool, list[list[float]]],
    rounds: int,
) -> list[dict[str, str]]:
    walls: dict[str, list[float]] = {name: [] for name in ways}
    works: dict[str, list[float]] = {name: [] for name in ways}
    taus: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        at = turn % len(asked)
        for name, (way, threads) in ways.items():
            torch.set_num_threads(threads)
            began, worked = time.perf_counter(), time.process_time()
            found = await way(asked[at])
            if turn:  # the first is to warm up
                walls[name].append(1e3 * (time.perf_counter() - began))
                works[name].append(1e3 * (time.process_time() - worked))
                taus[name].append(float(kendalltau(wanted["adapted" in name][at], found).statistic))
    torch.set_num_threads(1)
    return [
        {
            "": name,
            "p50": f"{median(walls[name]):.0f} ms",
            "least": f"{min(walls[name]):.0f} ms",
            "processor": f"{median(works[name]):.0f} ms",
            "Kendall's τ": f"{mean(taus[name]):.4f}",
        }
        for name in ways
    ]


def _candidates(asked: RetrievedQuestion) -> list[Passage]:
    return [Passage(one.id, one.title, one.text) for one in asked.passages]


def _in_float32(model: Encoder, asked: RetrievedQuestion, adapter: LowRankAdapter | None) -> list[float]:
    return model.scores(asked.question, _candidates(asked), Agent(), adapter)


def _lengths(model: Encoder, asked: Sequence[RetrievedQuestion]) -> list[list[int]]:
    """Return the length of each pair of each request. Tokens."""
    texts = [[passage_text(one.title, one.text) for one in _candidates(some)] for some in asked]
    rows = [model.rows(some.question, these, Agent()) for some, these in zip(asked, texts, strict=True)]
    return [[len(row.ids) for row in some] for some in rows]


async def _scored(reranker: CrossEncoderReranker, asked: RetrievedQuestion) -> Sequence[float]:
    return (await reranker.score(asked.question, _candidates(asked), Agent())).values


async def _predicted(peer: Any, asked: RetrievedQuestion) -> Sequence[float]:
    texts = [(asked.question, passage_text(one.title, one.text)) for one in _candidates(asked)]
    return [float(value) for value in peer.predict(texts, show_progress_bar=False)]
