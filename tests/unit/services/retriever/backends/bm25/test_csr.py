"""BM25 against its oracle, the rank_bm25 package."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from services.retriever.backends.bm25.csr import CsrIndex
from services.retriever.backends.bm25.kernel import Kernel, NumbaKernel, NumpyKernel, choose
from services.retriever.backends.bm25.postings import build
from services.retriever.backends.bm25.reference import RankBm25Index
from services.retriever.backends.bm25.weighting import Lucene, Okapi

KERNELS = [NumpyKernel(), NumbaKernel()]
words = st.sampled_from(["a", "b", "c", "d", "e", "f", "the", "of"])
corpora = st.lists(st.lists(words, max_size=20), min_size=1, max_size=25).filter(any)
queries = st.lists(words | st.just("unknown"), max_size=8)
parameters = st.tuples(st.sampled_from([1.5, 0.9, 2.0]), st.sampled_from([0.75, 0.4, 0.0]))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
@given(corpora, queries, parameters, st.sampled_from([0, 10**6]))
@example([["a"]], ["a", "a"], (1.5, 0.75), 0)  # idf is negative, and so is its floor
@example([["a", "b"], ["a"], ["a"]], ["a"], (1.5, 0.75), 10**6)  # a word of every passage
@example([[], ["a"], []], ["a"], (1.5, 0.75), 0)  # passages without a token
def test_okapi_is_rank_bm25_to_the_last_bit(
    kernel: Kernel, corpus: list[list[str]], query: list[str], k1_b: tuple[float, float], dense_bytes: int
) -> None:
    k1, b = k1_b
    expected = BM25Okapi(corpus, k1=k1, b=b).get_scores(query)
    index = CsrIndex(build(corpus), Okapi(k1, b), kernel, dense_bytes=dense_bytes)
    np.testing.assert_array_equal(index.scores(query), expected)
    found = index.search(query, 5)
    rows = sorted(range(len(corpus)), key=lambda row: (-expected[row], row))[:5]
    assert found.rows.tolist() == rows
    assert found.scores.tolist() == expected[rows].tolist()


@given(corpora, queries)
def test_the_reference_engine_gives_what_it_is(corpus: list[list[str]], query: list[str]) -> None:
    index = RankBm25Index(build(corpus), Okapi())
    np.testing.assert_array_equal(index.scores(query), BM25Okapi(corpus).get_scores(query))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_lucene_by_hand(kernel: Kernel) -> None:
    # Three passages of 2, 1 and 3 tokens: the mean is 2. "a" is in two of them.
    index = CsrIndex(build([["a", "b"], ["c"], ["a", "a", "d"]]), Lucene(1.2, 0.75), kernel)
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    expected = [
        idf * 1 / (1 + 1.2 * (1 - 0.75 + 0.75 * 2 / 2)),
        0.0,
        idf * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / 2)),
    ]
    np.testing.assert_allclose(index.scores(["a"]), expected, rtol=1e-14)


@given(corpora, queries)
def test_lucene_is_never_negative(corpus: list[list[str]], query: list[str]) -> None:
    scores = CsrIndex(build(corpus), Lucene(), NumpyKernel()).scores(query)
    matches = [bool(set(query) & set(document)) for document in corpus]
    assert (scores > 0).tolist() == matches


def test_rows_of_ready_scores_change_nothing() -> None:
    rng = np.random.default_rng(7)
    corpus = [[f"w{min(rank, 300)}" for rank in rng.zipf(1.3, 40)] for _ in range(200)]
    postings = build(corpus)
    query = ["w1", "w2", "w9", "w1", "w300"]
    plain = CsrIndex(postings, Okapi(), NumpyKernel()).scores(query)
    for kernel in KERNELS:
        for dense_bytes in (8 * 200, 1 << 20):  # room for one row, and for all
            index = CsrIndex(postings, Okapi(), kernel, dense_bytes=dense_bytes)
            np.testing.assert_array_equal(index.scores(query), plain)


def test_no_passages_and_no_tokens() -> None:
    for kernel in KERNELS:
        for corpus in ([], [[], []]):
            found = CsrIndex(build(corpus), Okapi(), kernel, dense_bytes=100).search(["a"], 3)
            assert found.rows.tolist() == list(range(len(corpus)))
            assert found.scores.tolist() == [0.0] * len(corpus)
            assert RankBm25Index(build(corpus), Okapi()).search(["a"], 3).rows.tolist() == found.rows.tolist()


def test_the_kernel_is_compiled_where_numba_is() -> None:
    assert choose().name == "numba"
    assert choose("numpy").name == "numpy"
