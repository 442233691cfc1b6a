"""BM25 against ``rank_bm25`` and ``bm25s``: the same tokens, the same queries, one thread, in turn."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from benchmarks.shared_data import folder, rows
from evenmesh_retriever.analyzer import UnicodeWordAnalyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.reference import RankBm25Index
from evenmesh_retriever.backends.bm25.weighting import Lucene, Okapi
from evenmesh_retriever.domain import FloatArray, IntArray

TOP = 100
SIZES = (20_000, 200_000, 1_000_000)
_VOCABULARY = 200_000
_QUERIES = 200
_ROUNDS = 3
_MEAN_LENGTH = 60
_QUERY_LENGTH = 10


def measure() -> str:
    """Time our ``bm25`` and ``rank_bm25`` itself on squad-open, or on generated text where it is absent.

    Returns:
        The section of the page.
    """
    corpus, texts, questions = _squad() or _generated()
    analyzer = UnicodeWordAnalyzer()
    documents = [analyzer.tokens(text) for text in texts]
    asked = [analyzer.tokens(question) for question in questions[:_QUERIES]]
    postings = build(documents)
    weighting = Okapi()
    ours = CsrIndex(postings, weighting)
    reference = RankBm25Index(postings, weighting)
    difference = max(
        float(np.abs(ours.scores(tokens) - reference.scores(tokens)).max()) for tokens in asked[:50]
    )
    slow, fast = [], []
    for _ in range(_ROUNDS):
        slow.append(_p50_ms(lambda tokens: reference.search(tokens, TOP), asked[: _QUERIES // 4]))
        fast.append(_p50_ms(lambda tokens: ours.search(tokens, TOP), asked))
    ratio = median(one / other for one, other in zip(slow, fast, strict=True))
    return f"""{corpus}: {len(texts):,} passages, {len(asked)} questions, top {TOP}, one thread,
kernel numba.

| | p50 per query | ratio | target |
|---|---|---|---|
| `rank_bm25.BM25Okapi` | {median(slow):.2f} ms | | |
| `bm25` (engine `csr`) | {median(fast):.3f} ms | {ratio:.0f} × faster | ≥ 200 × |

Largest difference of a score: {difference:.1e} (bound 1e-5)."""


def _p50_ms(search: Callable[[Sequence[str]], object], asked: Sequence[Sequence[str]]) -> float:
    return float(np.median(_times_ms(search, asked)))


def measure_sizes() -> list[tuple[dict[str, str], dict[str, str]]]:
    """Time BM25 on generated passages: about 60 words by Zipf's law, and queries of 10 such words.

    Returns:
        For each size, the times of a query and what the indexes take.
    """
    return [_scale(size) for size in SIZES]


def _scale(size: int) -> tuple[dict[str, str], dict[str, str]]:
    import bm25s
    from bm25s.tokenization import Tokenized

    lengths, numbers, asked_numbers = _zipf(size)
    words = np.array([f"w{number}" for number in range(_VOCABULARY)], dtype=object)
    ends = np.cumsum(lengths)

    def documents() -> Iterator[list[str]]:
        for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True):
            yield words[numbers[begin:end]].tolist()

    reading_s = _seconds(lambda: deque(documents(), maxlen=0))
    began = time.perf_counter()
    postings = build(documents())
    build_s = time.perf_counter() - began - reading_s
    floor_s = _seconds(lambda: _floor(documents(), size)) - reading_s
    ours, okapi = CsrIndex(postings, Lucene()), CsrIndex(postings, Okapi())
    asked = [words[query].tolist() for query in asked_numbers]

    peer = bm25s.BM25(backend="numba", method="lucene", k1=Lucene().k1, b=Lucene().b)
    corpus = Tokenized(
        ids=[part.tolist() for part in np.split(numbers, ends[:-1])],
        vocab={word: number for number, word in enumerate(words.tolist())},
    )
    bm25s_build_s = _seconds(partial(peer.index, corpus, show_progress=False))

    def theirs(tokens: Sequence[Sequence[str]]) -> Any:
        return peer.retrieve(tokens, k=TOP, show_progress=False, n_threads=1)

    # Equal scores are ordered differently.
    overlap = np.mean(
        [np.isin(theirs([tokens])[0][0], ours.search(tokens, TOP).rows).mean() for tokens in asked[:20]]
    )
    times: list[list[FloatArray]] = [[], [], []]
    batched: list[tuple[float, float]] = []
    for _ in range(_ROUNDS):
        times[0].append(_times_ms(lambda tokens: ours.search(tokens, TOP), asked))
        times[1].append(_times_ms(lambda tokens: theirs([tokens]), asked))
        times[2].append(_times_ms(lambda tokens: okapi.search(tokens, TOP), asked))
        batched.append(
            (
                1e3 * _seconds(lambda: [ours.search(tokens, TOP) for tokens in asked]) / _QUERIES,
                1e3 * _seconds(lambda: theirs(asked)) / _QUERIES,
            )
        )
    reference = ""
    if size == min(SIZES):  # beyond, it takes too long
        slow = RankBm25Index(postings, Okapi())
        reference = f"{_p50_ms(lambda tokens: slow.search(tokens, TOP), asked[:20]):.1f}"
    by_engine = [np.median(np.stack(engine), axis=0) for engine in times]
    p50 = [float(np.median(engine)) for engine in by_engine]
    p99 = [float(np.quantile(engine, 0.99)) for engine in by_engine]
    ours_batched, theirs_batched = (median(side) for side in zip(*batched, strict=True))
    own = sum(one.nbytes for one in (postings.bounds, postings.rows, postings.counts, postings.lengths))
    theirs_bytes = sum(one.nbytes for one in peer.scores.values() if isinstance(one, np.ndarray))
    speed = {
        "passages": f"{size:,}",
        "bm25-lucene": f"{p50[0]:.3f} / {p99[0]:.3f}",
        "bm25 (Okapi)": f"{p50[2]:.3f}",
        "bm25s (numba)": f"{p50[1]:.3f} / {p99[1]:.3f}",
        "ours / bm25s (≤ 1.5)": f"{p50[0] / p50[1]:.2f}",
        "batched, bm25s / ours (≥ 0.7)": f"{theirs_batched / ours_batched:.2f}",
        "rank_bm25": reference,
        "overlap@100": f"{overlap:.3f}",
    }
    return speed, {
        "passages": f"{size:,}",
        "build from tokens": f"{build_s:.1f} s",
        "over the floor (≤ 2)": f"{build_s / floor_s:.2f}",
        "bm25s, from numbered tokens": f"{bm25s_build_s:.1f} s",
        "our arrays": f"{own / 2**20:.0f} MiB",
        "bm25s": f"{theirs_bytes / 2**20:.0f} MiB",
    }


def _zipf(size: int) -> tuple[IntArray, NDArray[np.int32], list[IntArray]]:
    """Return lengths of passages, the numbers of their words end to end, and queries."""
    rng = np.random.default_rng(size)
    weights = 1 / (np.arange(1, _VOCABULARY + 1) + 2.7) ** 1.05
    cumulated = np.cumsum(weights / weights.sum())
    lengths = np.clip(rng.lognormal(np.log(_MEAN_LENGTH), 0.4, size), 5, 400).astype(np.int64)
    parts = [
        np.searchsorted(cumulated, rng.random(int(part.sum()))).astype(np.int32)
        for part in np.array_split(lengths, max(1, size // 100_000))
    ]
    numbers = np.minimum(np.concatenate(parts), _VOCABULARY - 1)
    asked = [
        np.minimum(np.searchsorted(cumulated, rng.random(_QUERY_LENGTH)), _VOCABULARY - 1)
        for _ in range(_QUERIES)
    ]
    return lengths, numbers, asked


def _floor(documents: Iterable[Sequence[str]], size: int) -> object:
    """Return the least that any index of counts by term does."""
    terms: dict[str, int] = {}
    numbers = array("i")
    lengths = []
    for tokens in documents:
        numbers.extend([terms.setdefault(token, len(terms)) for token in tokens])
        lengths.append(len(tokens))
    rows = np.repeat(np.arange(size, dtype=np.int32), lengths)
    columns = np.frombuffer(numbers, dtype=np.int32)
    ones = np.ones(len(columns), dtype=np.uint16)
    by_term = sparse.coo_array((ones, (rows, columns)), shape=(size, len(terms))).tocsc()
    by_term.sum_duplicates()
    return by_term


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def _times_ms(search: Callable[[Sequence[str]], object], asked: Sequence[Sequence[str]]) -> FloatArray:
    for tokens in asked[:5]:
        search(tokens)
    return np.array([1e3 * _seconds(partial(search, tokens)) for tokens in asked])


def _squad() -> tuple[str, list[str], list[str]] | None:
    try:
        squad = folder("squad-open")
    except FileNotFoundError:
        return None
    texts = [
        f"{row['title']} {row['text']}"
        for split in ("train", "dev")
        for row in rows(squad / f"passages.{split}.jsonl.gz")
    ]
    return (
        "squad-open, train and dev",
        texts,
        [r["question"] for r in rows(squad / "questions.dev.jsonl.gz")],
    )


def _generated() -> tuple[str, list[str], list[str]]:
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(50_000)])
    weights = 1 / np.arange(1, len(words) + 1)
    weights /= weights.sum()
    texts = [" ".join(rng.choice(words, 120, p=weights)) for _ in range(20_000)]
    return "generated, Zipf", texts, [" ".join(rng.choice(words, 10, p=weights)) for _ in range(400)]
