"""BM25 against ``rank_bm25``: the same tokens, the same queries, one thread, in turn."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from services.retriever.analyzer import UnicodeWordAnalyzer
from services.retriever.backends.bm25.csr import CsrIndex
from services.retriever.backends.bm25.kernel import choose
from services.retriever.backends.bm25.postings import build
from services.retriever.backends.bm25.reference import RankBm25Index
from services.retriever.backends.bm25.weighting import Okapi

TOP = 100
_CACHE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Comparison:
    """One collection, both engines; times are p50 of single queries."""

    corpus: str
    passages: int
    queries: int
    reference_ms: float
    ours_ms: float
    ratio: float
    largest_difference: float
    kernel: str


def measure(*, queries: int = 200, rounds: int = 3) -> Comparison:
    """Times our ``bm25`` and ``rank_bm25`` itself on squad-open, or on generated text where it is absent."""
    corpus, texts, questions = _squad() or _generated()
    analyzer = UnicodeWordAnalyzer()
    documents = [analyzer.tokens(text) for text in texts]
    asked = [analyzer.tokens(question) for question in questions[:queries]]
    postings = build(documents)
    weighting, kernel = Okapi(), choose()
    ours = CsrIndex(postings, weighting, kernel, dense_bytes=_CACHE_BYTES)
    reference = RankBm25Index(postings, weighting)
    difference = max(
        float(np.abs(ours.scores(tokens) - reference.scores(tokens)).max()) for tokens in asked[:50]
    )
    pairs = []
    for _ in range(rounds):
        slow = _p50_ms(lambda tokens: reference.search(tokens, TOP), asked[: queries // 4])
        fast = _p50_ms(lambda tokens: ours.search(tokens, TOP), asked)
        pairs.append((slow, fast))
    return Comparison(
        corpus=corpus,
        passages=len(texts),
        queries=len(asked),
        reference_ms=median(slow for slow, _ in pairs),
        ours_ms=median(fast for _, fast in pairs),
        ratio=median(slow / fast for slow, fast in pairs),
        largest_difference=difference,
        kernel=kernel.name,
    )


def _p50_ms(search: Callable[[Sequence[str]], object], asked: Sequence[Sequence[str]]) -> float:
    for tokens in asked[:5]:
        search(tokens)
    times = []
    for tokens in asked:
        began = time.perf_counter()
        search(tokens)
        times.append(1e3 * (time.perf_counter() - began))
    return median(times)


def shared_data() -> Path:
    """The folder of data sets: ``RAGMESH_SHARED_DATA``, or ``shared/data`` beside the checkout."""
    here = Path(__file__).resolve().parents[1]
    return Path(os.environ.get("RAGMESH_SHARED_DATA", here.parent / "shared" / "data"))


def _squad() -> tuple[str, list[str], list[str]] | None:
    folder = shared_data() / "squad-open"
    if not folder.is_dir():
        return None
    texts = [
        f"{row['title']} {row['text']}"
        for split in ("train", "dev")
        for row in _rows(folder / f"passages.{split}.jsonl.gz")
    ]
    return (
        "squad-open, train and dev",
        texts,
        [r["question"] for r in _rows(folder / "questions.dev.jsonl.gz")],
    )


def _rows(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _generated() -> tuple[str, list[str], list[str]]:
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(50_000)])
    weights = 1 / np.arange(1, len(words) + 1)
    weights /= weights.sum()
    texts = [" ".join(rng.choice(words, 120, p=weights)) for _ in range(20_000)]
    return "generated, Zipf", texts, [" ".join(rng.choice(words, 10, p=weights)) for _ in range(400)]
