"""BM25 against its oracle, the rank_bm25 package."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rank_bm25 import BM25L, BM25Okapi, BM25Plus

from evenmesh_retriever.backends.bm25.csr import CsrIndex, Statistics
from evenmesh_retriever.backends.bm25.postings import Postings, build
from evenmesh_retriever.backends.bm25.reference import RankBm25Index
from evenmesh_retriever.backends.bm25.weighting import LongWeighting, Lucene, Okapi, PlusWeighting, Weighting
from evenmesh_retriever.backends.selection import best
from evenmesh_retriever.domain import FloatArray

words = st.sampled_from(["a", "b", "c", "d", "e", "f", "the", "of"])
corpora = st.lists(st.lists(words, max_size=20), min_size=1, max_size=25).filter(any)
queries = st.lists(words | st.just("unknown"), max_size=8)
parameters = st.tuples(st.sampled_from([1.5, 0.9, 2.0]), st.sampled_from([0.75, 0.4, 0.0]))


@given(corpora, queries, parameters)
@example([["a"]], ["a", "a"], (1.5, 0.75))  # idf is negative, and so is its floor
@example([["a", "b"], ["a"], ["a"]], ["a"], (1.5, 0.75))  # a word of every passage
@example([[], ["a"], []], ["a"], (1.5, 0.75))  # passages without a token
@example([["a"] * 40, ["a"] * 16, ["a"] * 15, ["b"]], ["a"], (1.5, 0.75))  # counts that are not looked up
def test_okapi_is_rank_bm25_to_the_last_bit(
    corpus: list[list[str]], query: list[str], k1_b: tuple[float, float]
) -> None:
    k1, b = k1_b
    expected = BM25Okapi(corpus, k1=k1, b=b).get_scores(query)
    index = CsrIndex(build(corpus), Okapi(k1, b))
    np.testing.assert_array_equal(index.scores(query), expected)
    found = index.search(query, 5)
    rows = sorted(range(len(corpus)), key=lambda row: (-expected[row], row))[:5]
    assert found.rows.tolist() == rows
    assert found.scores.tolist() == expected[rows].tolist()


@given(corpora, queries, parameters, st.sampled_from([1.0, 0.5, 0.25]))
@example([["a"] * 40, ["a"] * 16, ["a"] * 15, ["b"]], ["a", "b", "a"], (1.5, 0.75), 1.0)
def test_plus_is_rank_bm25s(
    corpus: list[list[str]], query: list[str], k1_b: tuple[float, float], delta: float
) -> None:
    k1, b = k1_b
    expected = BM25Plus(corpus, k1=k1, b=b, delta=delta).get_scores(query)
    index = CsrIndex(build(corpus), PlusWeighting(k1, b, delta))
    np.testing.assert_allclose(index.scores(query), expected, rtol=1e-13, atol=0)
    assert index.search(query, len(corpus)).scores.tolist() == sorted(index.scores(query), reverse=True)


@given(corpora, queries, parameters, st.sampled_from([1.0, 0.5, 0.25]))
@example([["a"] * 40, ["a"] * 16, ["a"] * 15, ["b"]], ["a", "b", "a"], (1.5, 0.75), 0.5)
def test_long_is_rank_bm25s(
    corpus: list[list[str]], query: list[str], k1_b: tuple[float, float], delta: float
) -> None:
    k1, b = k1_b
    expected = BM25L(corpus, k1=k1, b=b, delta=delta).get_scores(query)
    index = CsrIndex(build(corpus), LongWeighting(k1, b, delta))
    np.testing.assert_allclose(index.scores(query), expected, rtol=1e-13, atol=0)


def test_the_defaults_are_rank_bm25s() -> None:
    corpus = [["a", "b"], ["a"], ["c"]]
    for ours, theirs in ((Okapi(), BM25Okapi), (PlusWeighting(), BM25Plus), (LongWeighting(), BM25L)):
        expected = theirs(corpus)
        assert (ours.k1, ours.b) == (expected.k1, expected.b)
    assert PlusWeighting().delta == BM25Plus(corpus).delta
    assert LongWeighting().delta == BM25L(corpus).delta


@given(corpora, queries)
def test_the_reference_engine_gives_what_it_is(corpus: list[list[str]], query: list[str]) -> None:
    index = RankBm25Index(build(corpus), Okapi())
    np.testing.assert_array_equal(index.scores(query), BM25Okapi(corpus).get_scores(query))


def test_lucene_by_hand() -> None:
    # Three passages of 2, 1 and 3 tokens: the mean is 2. "a" is in two of them.
    index = CsrIndex(build([["a", "b"], ["c"], ["a", "a", "d"]]), Lucene(1.2, 0.75))
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    expected = [
        idf * 1 / (1 + 1.2 * (1 - 0.75 + 0.75 * 2 / 2)),
        0.0,
        idf * 2 / (2 + 1.2 * (1 - 0.75 + 0.75 * 3 / 2)),
    ]
    np.testing.assert_allclose(index.scores(["a"]), expected, rtol=1e-14)


@given(corpora, queries)
def test_lucene_is_never_negative(corpus: list[list[str]], query: list[str]) -> None:
    scores = CsrIndex(build(corpus), Lucene()).scores(query)
    matches = [bool(set(query) & set(document)) for document in corpus]
    assert (scores > 0).tolist() == matches


@pytest.mark.parametrize(
    "weighting", [Okapi(), Lucene(), PlusWeighting(), LongWeighting()], ids=lambda w: type(w).__name__
)
@given(corpora, queries, st.data())
def test_a_mask_leaves_passages_out_before_ranking(
    weighting: Weighting, corpus: list[list[str]], query: list[str], data: st.DataObject
) -> None:
    size = len(corpus)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)))
    index = CsrIndex(build(corpus), weighting)
    scores = index.scores(query)
    expected = sorted(np.flatnonzero(allowed).tolist(), key=lambda row: (-scores[row], row))[:3]
    found = index.search(query, 3, allowed)
    assert found.rows.tolist() == expected
    assert found.scores.tolist() == scores[expected].tolist()


@pytest.mark.parametrize(
    "weighting", [Okapi(), Lucene(), PlusWeighting(), LongWeighting()], ids=lambda w: type(w).__name__
)
def test_a_part_with_the_statistics_of_the_whole_scores_as_the_whole_does(weighting: Weighting) -> None:
    rng = np.random.default_rng(3)
    corpus = [[f"w{rank}" for rank in rng.zipf(1.5, 30) if rank < 50] for _ in range(80)]
    whole, part = build(corpus), build(corpus[:30])
    query = ["w1", "w2", "w9", "w1"]
    everything = Statistics.of(whole, weighting)
    known = np.array([whole.terms[term] for term in part.terms])
    statistics = Statistics(
        everything.num_passages,
        everything.average_length,
        everything.frequencies[known],
        everything.mean_idf,
    )
    expected = CsrIndex(whole, weighting).scores(query)[:30]
    np.testing.assert_array_equal(CsrIndex(part, weighting, statistics).scores(query), expected)


def plain_scores(postings: Postings, weighting: Weighting, tokens: list[str]) -> FloatArray:
    """Return the scores that the compiled loops are to give, by NumPy, token by token."""
    statistics = Statistics.of(postings, weighting)
    terms = postings.numbers(tokens)
    idf = weighting.idf(statistics.frequencies[terms], statistics.num_passages, statistics.mean_idf)
    norms = weighting.norms(postings.lengths.astype(np.float64), statistics.average_length)
    scores = np.zeros(len(postings))
    for term, weight in zip(terms.tolist(), idf.tolist(), strict=True):
        part = slice(postings.bounds[term], postings.bounds[term + 1])
        rows = postings.rows[part]
        gains = np.full(len(postings), weight * weighting.absent)
        gains[rows] = weight * weighting.parts(postings.counts[part].astype(np.float64), norms[rows])
        scores += gains
    return scores


@cache
def many_postings() -> Postings:
    """Passages that are added up in two parts."""
    rng = np.random.default_rng(7)
    return build([[f"w{rank}" for rank in rng.zipf(1.3, 6)] for _ in range(70_000)])


@pytest.mark.parametrize(
    "weighting", [Okapi(), Lucene(), PlusWeighting(), LongWeighting()], ids=lambda w: type(w).__name__
)
def test_more_passages_than_are_added_up_at_a_time(weighting: Weighting) -> None:
    postings = many_postings()
    query = ["w1", "w2", "w9", "w1", "w300"]
    index = CsrIndex(postings, weighting)
    expected = plain_scores(postings, weighting, query)
    np.testing.assert_array_equal(index.scores(query), expected)
    found, best_of_all = index.search(query, 500), best(expected, 500)
    assert found.rows.tolist() == best_of_all.rows.tolist()
    assert found.scores.tolist() == best_of_all.scores.tolist()


def test_no_passages_and_no_tokens() -> None:
    for corpus in ([], [[], []]):
        for weighting in (Okapi(), Lucene(), PlusWeighting(), LongWeighting()):
            found = CsrIndex(build(corpus), weighting).search(["a"], 3)
            assert found.rows.tolist() == list(range(len(corpus)))
            assert found.scores.tolist() == [0.0] * len(corpus)
        assert RankBm25Index(build(corpus), Okapi()).search(["a"], 3).rows.tolist() == found.rows.tolist()
