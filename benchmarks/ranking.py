"""What ranking costs: beside answering alone (RankRAG, Figure 5), and beside sentence-transformers.

The cross-encoder is the one in ``EVENMESH_BENCH_CROSS_ENCODER``, a folder, or else of the shape of MiniLM-L6:
the base model with a head fitted to what the bundled generator says of other questions' passages, so that its
scores are spread as a trained one's.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from operator import add, truediv
from pathlib import Path
from statistics import mean, median
from typing import TypeVar

import torch
from scipy.stats import kendalltau
from sentence_transformers import CrossEncoder

from benchmarks import page, products
from benchmarks.engines import reranker
from benchmarks.generation import BUNDLED, RetrievedQuestion, in_process, squad
from evenmesh_core.ranking import top_k
from evenmesh_generator import relevance
from evenmesh_generator.domain import Augmentation, Decoding, GenerationRequest, Passage, RelevanceRequest
from evenmesh_generator.ports import Cancellation, LanguageModel
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.backends.cross_encoder import CrossEncoderReranker
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader
from evenmesh_reranker.bundled import base_tokenizer
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.domain import Passage as Candidate
from evenmesh_reranker.models.pairs import passage_text
from evenmesh_training.ium.start import fresh

T = TypeVar("T")

DEPTHS = (20, 30, 40, 50, 100)
"""Passages that are ranked, as in the paper's Figure 5."""
SHOWN = 5
QUESTIONS = 12
PAIRS = 100
CALLERS = 8
FITTED = 8
"""Questions that the head is fitted to; none of them is measured."""
TOLERANCES = (0.0, 0.01, 0.05, 0.1)
CERTAIN = (1, 5)
"""How many of the best are wanted where judging stops early."""
_EXACT, _PREDICT = "ours, float32", "`CrossEncoder.predict`, defaults"


async def measure(
    *, questions: int = QUESTIONS, depths: Sequence[int] = DEPTHS, pairs: int = PAIRS, rounds: int = 9
) -> str:
    """Measure one after the other, one thread of matrix products, the peers in turn.

    Returns:
        The section of the page.
    """
    torch.set_num_threads(1)
    asked = squad(questions + FITTED, max(*depths, pairs))
    asked, others = asked[FITTED:], asked[:FITTED]
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = await _cross_encoder(Path(made), others)
        pool = ComputePool(2, "bench")
        stack.callback(pool.close)
        placement = Placement.choose("cpu", "auto")
        exact = _encoder(folder, Placement.choose("cpu", "float32"))
        narrow = _encoder(folder, placement)
        overheads: list[dict[str, str]] = []
        for depth in depths:
            overheads += await _overheads(depth, asked, narrow, pool)
        overheads.sort(key=lambda row: row["reranker"] != "rankrag")
        stopping = await _stopping(asked, max(depths))
        beside = _Beside(folder, exact, narrow, placement.dtype_name, pool)
        speeds, bound, gflops, tokens = await beside.measure([_first(one, pairs) for one in asked], rounds)
        await beside.close()
    return f"""{questions} dev questions of squad-open with BM25's best passages; one thread of matrix
products, everything in this process, medians. Ranking and answering beside answering alone, as the paper's
Figure 5 (there 1.9 to 7 times): `rankrag` judges and answers with the bundled model, the cross-encoder is of
MiniLM-L6's shape, computed by PyTorch; [below](#the-cross-encoder-by-engine) is what OpenVINO makes of it,
and what a request of 20 pairs takes. Answers are greedy, from {SHOWN} passages. What rankrag has read to
judge it does not read again to answer; the cross-encoder's ranking leaves all of it to do.

{page.table(overheads)}

{pairs} pairs of {tokens:.0f} tokens a request, the ways in turn. The bound is what float32 matrix products
alone would take at the {gflops:.0f} GFLOP/s that a square one reaches here: {bound:.0f} pairs/s
(targets: ≥ 0.6, with AMX ≥ 1.6; ≥ 3 × predict; Kendall ≥ 0.99).

{page.table(speeds)}

Where judging {max(depths)} passages stops when only the best are wanted (`top_k`, `tolerance`): at 0 the best
are exactly those of judging all.

{page.table(stopping)}"""


async def _cross_encoder(home: Path, others: Sequence[RetrievedQuestion]) -> Path:
    if named := os.environ.get("EVENMESH_BENCH_CROSS_ENCODER"):
        return Path(named)
    _, model = fresh(seed=0)
    tokenizer = base_tokenizer()  # without agents: the peer reads the same
    found: list[torch.Tensor] = []
    wanted: list[float] = []
    with in_process(BUNDLED, None) as judge, torch.inference_mode():
        for one in others:
            few = one.passages[:20]
            wanted += await _judged(judge, one.question, few)
            read = tokenizer(
                [one.question] * len(few),
                [_text(passage) for passage in few],
                padding=True,
                truncation=True,
                return_tensors="pt",
            )
            found.append(model.bert(**read).pooler_output)
    seen = torch.cat(found).double()
    logits = torch.logit(torch.tensor(wanted, dtype=torch.float64).clamp(0.001, 0.999))
    features = torch.cat([seen, torch.ones(len(seen), 1, dtype=torch.float64)], 1)
    # Ridge regression: there are about as many features as passages.
    inner = features.T @ features + torch.eye(features.shape[1], dtype=torch.float64)
    head = torch.linalg.solve(inner, features.T @ logits)
    with torch.no_grad():
        model.classifier.weight.copy_(head[None, :-1])
        model.classifier.bias.copy_(head[-1:])
    folder = home / "cross-encoder"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _encoder(folder: Path, placement: Placement) -> Encoder:
    loader = EncoderLoader(placement)
    return loader.full(folder, "v", provenance="bench", created_at=datetime.now(UTC))


async def _overheads(
    depth: int, asked: Sequence[RetrievedQuestion], narrow: Encoder, pool: ComputePool
) -> list[dict[str, str]]:
    """Time both rerankers at one depth, in turn for each question, without caches between questions."""
    ranks: dict[str, list[float]] = {"rankrag": [], "cross-encoder": []}
    after: dict[str, list[float]] = {"rankrag": [], "cross-encoder": []}
    alone = []
    cross_encoder = reranker(narrow, None, pool)
    with in_process(BUNDLED, None) as one_model, in_process(BUNDLED, None, cache_bytes=0) as another:
        await _answered(another, asked[0], range(SHOWN))  # warm
        for one in asked:
            some = _first(one, depth)
            alone.append((await _timed(_answered(another, some, range(SHOWN))))[0])
            took, scores = await _timed(_judged(one_model, some.question, some.passages))
            ranks["rankrag"].append(took)
            after["rankrag"].append((await _timed(_answered(one_model, some, _best(scores))))[0])
            took, scores = await _timed(_scored(cross_encoder, some, Agent()))
            ranks["cross-encoder"].append(took)
            after["cross-encoder"].append((await _timed(_answered(another, some, _best(scores))))[0])
    await cross_encoder.close()
    return [
        {
            "reranker": name,
            "passages": str(depth),
            "ranking": f"{1e3 * median(ranks[name]):.0f} ms",
            "answering alone": f"{1e3 * median(alone):.0f} ms",
            "answering after ranking / alone": f"{median(map(truediv, after[name], alone)):.2f}",
            "together / alone": f"{median(map(truediv, map(add, ranks[name], after[name]), alone)):.1f}",
        }
        for name in ranks
    ]


async def _stopping(asked: Sequence[RetrievedQuestion], pool: int) -> list[dict[str, str]]:
    """Return what the generator's engine would have judged, given the scores of all."""
    scores = []
    with in_process(BUNDLED, None, cache_bytes=0) as judge:
        for one in asked:
            scores.append(await _judged(judge, one.question, one.passages[:pool]))
    ids = [f"{place:04}" for place in range(pool)]  # ties by the retriever's order
    found = []
    for count in CERTAIN:
        for tolerance in TOLERANCES:
            judged = [_needed(one, ids, count, tolerance) for one in scores]
            found.append(
                {
                    "best wanted": str(count),
                    "tolerance": f"{tolerance:g}",
                    "questions stopped early": f"{sum(one < pool for one in judged)} of {len(asked)}",
                    "passages judged": f"{100 * mean(judged) / pool:.0f} %",
                }
            )
    return found


def _needed(scores: Sequence[float], ids: Sequence[str], count: int, tolerance: float) -> int:
    for some in relevance.rounds(len(ids), count):
        if relevance.settled(scores[: some.stop], ids, count, tolerance):
            return int(some.stop)
    return len(ids)


class _Beside:
    """Ours beside sentence-transformers: the same pairs, in turn.

    Args:
        folder: of the cross-encoder.
        exact: the same in float32.
        narrow: the same in the type that serves.
        dtype: that type's name.
        pool: threads that compute.
    """

    def __init__(self, folder: Path, exact: Encoder, narrow: Encoder, dtype: str, pool: ComputePool) -> None:
        self._peer = CrossEncoder(str(folder), device="cpu")
        self._encoder = exact
        self._exact = reranker(exact, None, pool)
        self._narrow = reranker(narrow, None, pool)
        self._agents = [Agent(f"task-{at}", "m") for at in range(CALLERS)]
        self._ways: dict[str, Callable[[RetrievedQuestion], Awaitable[list[float]]]] = {
            _EXACT: lambda one: _scored(self._exact, one, Agent()),
            _PREDICT: self._predicted,
            f"ours, {dtype}": lambda one: _scored(self._narrow, one, Agent()),
            f"ours, {dtype}, {CALLERS} callers, as many agents": self._together,
        }

    async def measure(
        self, asked: Sequence[RetrievedQuestion], rounds: int
    ) -> tuple[list[dict[str, str]], float, float, float]:
        """Return speeds, the bound, what matrix products reach, and the mean length of a pair."""
        lengths = [self._lengths(one) for one in asked]
        for way in self._ways.values():
            await way(_first(asked[0], CALLERS))  # warm
        speeds: dict[str, list[float]] = {name: [] for name in self._ways}
        taus: dict[str, list[float]] = {name: [] for name in self._ways}
        rates, bounds = [], []
        for turn in range(rounds):
            one, of_one = asked[turn % len(asked)], lengths[turn % len(asked)]
            rates.append(products.gflops())
            bounds.append(1e9 * rates[-1] * len(of_one) / sum(map(products.operations, of_one)))
            scores: dict[str, list[float]] = {}
            for name, way in self._ways.items():
                took, scores[name] = await _timed(way(one))
                speeds[name].append(len(one.passages) / took)
                taus[name].append(float(kendalltau(scores[_EXACT], scores[name]).statistic))
        bound, predict = median(bounds), median(speeds[_PREDICT])
        found = [
            {
                "": name,
                "pairs/s": f"{(speed := median(speeds[name])):.0f}",
                "of the bound": f"{speed / bound:.2f}",
                "of predict": f"{speed / predict:.1f}",
                "Kendall's τ to float32": f"{mean(taus[name]):.4f}",
            }
            for name in self._ways
        ]
        return found, bound, median(rates), mean(map(mean, lengths))

    async def close(self) -> None:
        """End what waits."""
        await self._exact.close()
        await self._narrow.close()

    def _lengths(self, one: RetrievedQuestion) -> list[int]:
        texts = [_text(passage) for passage in one.passages]
        return [len(row.ids) for row in self._encoder.rows(one.question, texts, Agent())]

    async def _predicted(self, one: RetrievedQuestion) -> list[float]:
        pairs = [(one.question, _text(passage)) for passage in one.passages]
        return [float(value) for value in self._peer.predict(pairs, show_progress_bar=False)]

    async def _together(self, one: RetrievedQuestion) -> list[float]:
        """Return the same pairs, of callers that come at the same time."""
        parts = [replace(one, passages=one.passages[at::CALLERS]) for at in range(CALLERS)]
        asking = [_scored(self._narrow, part, agent) for part, agent in zip(parts, self._agents, strict=True)]
        found = await asyncio.gather(*asking)
        return [found[at % CALLERS][at // CALLERS] for at in range(len(one.passages))]


async def _timed(work: Awaitable[T]) -> tuple[float, T]:
    began = time.perf_counter()
    found = await work
    return time.perf_counter() - began, found


async def _judged(model: LanguageModel, question: str, passages: Sequence[Passage]) -> list[float]:
    return await model.score_relevance(RelevanceRequest(question, tuple(passages)), Cancellation())


async def _answered(model: LanguageModel, asked: RetrievedQuestion, places: Sequence[int]) -> None:
    request = GenerationRequest(
        asked.question,
        tuple(asked.passages[place] for place in places),
        augmentation=Augmentation.FUSION_IN_DECODER,
        decoding=Decoding(max_new_tokens=32),
    )
    await model.generate(request, Cancellation())


async def _scored(reranker: CrossEncoderReranker, asked: RetrievedQuestion, agent: Agent) -> list[float]:
    passages = [Candidate(one.id, one.title, one.text) for one in asked.passages]
    return list((await reranker.score(asked.question, passages, agent)).values)


def _best(scores: Sequence[float]) -> list[int]:
    found: list[int] = top_k(scores, None, SHOWN).tolist()
    return found


def _first(asked: RetrievedQuestion, count: int) -> RetrievedQuestion:
    return replace(asked, passages=asked.passages[:count], scores=asked.scores[:count])


def _text(passage: Passage) -> str:
    return passage_text(passage.title, passage.text)
