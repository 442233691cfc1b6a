"""BM25 against ``rank_bm25`` and ``bm25s``: the same tokens, the same queries, one thread, in turn."""

from __future__ import annotations

import gzip
import json
import os
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from services.retriever.analyzer import UnicodeWordAnalyzer
from services.retriever.backends.bm25.csr import CsrIndex
from services.retriever.backends.bm25.kernel import choose
from services.retriever.backends.bm25.postings import build
from services.retriever.backends.bm25.reference import RankBm25Index
from services.retriever.backends.bm25.weighting import Lucene, Okapi
from services.retriever.domain import FloatArray, IntArray

TOP = 100
SIZES = (20_000, 200_000, 1_000_000)
_VOCABULARY = 200_000
_MEAN_LENGTH = 60
_QUERY_LENGTH = 10


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
    ours = CsrIndex(postings, weighting, kernel)
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


@dataclass(frozen=True)
class Scale:
    """One collection of generated passages; times of queries are for one, in milliseconds.

    Attributes:
        passages: passages in it.
        tokens: tokens of all of them.
        ours_p50_ms: ``bm25-lucene``, one query at a time.
        ours_p99_ms: the same.
        ours_batched_ms: the same, mean of one query after the other.
        okapi_p50_ms: ``bm25``, one query at a time.
        bm25s_p50_ms: ``bm25s`` compiled by numba, one query at a time.
        bm25s_p99_ms: the same.
        bm25s_batched_ms: all queries in one call, mean of a query.
        rank_bm25_p50_ms: ``rank_bm25``; None beyond the smallest collection, where it takes too long.
        build_s: our postings from tokens. Seconds.
        floor_s: looking every token up in a dictionary, and a SciPy matrix by term of what comes out.
        bm25s_build_s: the index of ``bm25s``, from numbers of tokens that were looked up before.
        ours_bytes: our arrays for searching.
        bm25s_bytes: its arrays.
        overlap: share of its best 100 that are among our best 100; equal scores are ordered differently.
    """

    passages: int
    tokens: int
    ours_p50_ms: float
    ours_p99_ms: float
    ours_batched_ms: float
    okapi_p50_ms: float
    bm25s_p50_ms: float
    bm25s_p99_ms: float
    bm25s_batched_ms: float
    rank_bm25_p50_ms: float | None
    build_s: float
    floor_s: float
    bm25s_build_s: float
    ours_bytes: int
    bm25s_bytes: int
    overlap: float


def measure_sizes(sizes: Sequence[int] = SIZES, *, queries: int = 200, rounds: int = 3) -> list[Scale]:
    """Times BM25 on generated passages: about 60 words by Zipf's law, and queries of 10 such words."""
    return [_scale(size, queries, rounds) for size in sizes]


def _scale(size: int, queries: int, rounds: int) -> Scale:
    import bm25s
    from bm25s.tokenization import Tokenized

    lengths, numbers, asked_numbers = _zipf(size, queries)
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
    kernel = choose()
    ours, okapi = CsrIndex(postings, Lucene(), kernel), CsrIndex(postings, Okapi(), kernel)
    asked = [words[query].tolist() for query in asked_numbers]

    peer = bm25s.BM25(backend="numba", method="lucene", k1=Lucene().k1, b=Lucene().b)
    corpus = Tokenized(
        ids=[part.tolist() for part in np.split(numbers, ends[:-1])],
        vocab={word: number for number, word in enumerate(words.tolist())},
    )
    bm25s_build_s = _seconds(partial(peer.index, corpus, show_progress=False))

    def theirs(tokens: Sequence[Sequence[str]]) -> Any:
        return peer.retrieve(tokens, k=TOP, show_progress=False, n_threads=1)

    overlap = np.mean(
        [np.isin(theirs([tokens])[0][0], ours.search(tokens, TOP).rows).mean() for tokens in asked[:20]]
    )
    times: list[list[FloatArray]] = [[], [], []]
    batched: list[tuple[float, float]] = []
    for _ in range(rounds):
        times[0].append(_times_ms(lambda tokens: ours.search(tokens, TOP), asked))
        times[1].append(_times_ms(lambda tokens: theirs([tokens]), asked))
        times[2].append(_times_ms(lambda tokens: okapi.search(tokens, TOP), asked))
        batched.append(
            (
                1e3 * _seconds(lambda: [ours.search(tokens, TOP) for tokens in asked]) / queries,
                1e3 * _seconds(lambda: theirs(asked)) / queries,
            )
        )
    reference = None
    if size == min(SIZES):
        slow = RankBm25Index(postings, Okapi())
        reference = _p50_ms(lambda tokens: slow.search(tokens, TOP), asked[:20])
    by_engine = [np.median(np.stack(engine), axis=0) for engine in times]
    return Scale(
        passages=size,
        tokens=len(numbers),
        ours_p50_ms=float(np.median(by_engine[0])),
        ours_p99_ms=float(np.quantile(by_engine[0], 0.99)),
        ours_batched_ms=median(one for one, _ in batched),
        okapi_p50_ms=float(np.median(by_engine[2])),
        bm25s_p50_ms=float(np.median(by_engine[1])),
        bm25s_p99_ms=float(np.quantile(by_engine[1], 0.99)),
        bm25s_batched_ms=median(other for _, other in batched),
        rank_bm25_p50_ms=reference,
        build_s=build_s,
        floor_s=floor_s,
        bm25s_build_s=bm25s_build_s,
        ours_bytes=sum(
            one.nbytes for one in (postings.bounds, postings.rows, postings.counts, postings.lengths)
        ),
        bm25s_bytes=sum(array.nbytes for array in peer.scores.values() if isinstance(array, np.ndarray)),
        overlap=float(overlap),
    )


def _zipf(size: int, queries: int) -> tuple[IntArray, NDArray[np.int32], list[IntArray]]:
    """Lengths of passages, the numbers of their words end to end, and queries."""
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
        for _ in range(queries)
    ]
    return lengths, numbers, asked


def _floor(documents: Iterable[Sequence[str]], size: int) -> object:
    """The least that any index of counts by term does."""
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
