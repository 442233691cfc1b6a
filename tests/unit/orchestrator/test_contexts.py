"""Contexts: cutting, reordering, sampling, and telling the distinct ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh.common.v1.common_pb2 import Policy
from evenmesh_core.plackett_luce import Disparity, RelevanceLoss
from evenmesh_kit.rpc.policies import GroupShare, GroupShares, Target
from evenmesh_orchestrator.asks.contexts import cut, distinct, reordered, sampled, sampled_to
from evenmesh_orchestrator.domain import Contexts, FirstStage, Sampling
from tests.unit.orchestrator.fakes import passage

PASSAGES = [passage(name) for name in "abcdef"]


def test_equal_scores_of_a_first_stage_deviate_by_nothing() -> None:
    """NumPy's deviation of twenty times 2.3 is that of rounding, and whatever differs was 1e14 of it."""
    pool = np.array([2.3] * 20 + [2.2] * 10)
    first = FirstStage.of(pool, pool, None)
    assert first is not None
    assert (first.mean, first.deviation) == (pytest.approx(2.3), 0.0)


def test_cutting_keeps_the_first_k() -> None:
    contexts = cut(Contexts(np.array([[3, 1, 2], [0, 2, 1]]), np.array([-1.0, -2.0])), 2)
    assert contexts.rows.tolist() == [[3, 1], [0, 2]]
    assert contexts.log_probabilities is not None
    assert contexts.log_probabilities.tolist() == [-1.0, -2.0]


def test_each_sample_is_ordered_by_score_within_itself() -> None:
    # Scores of b, c, e, f: 0.2, 0.9, 0.5, 0.9; c and f tie and stand by id.
    contexts = reordered(
        Contexts(np.array([[1, 2, 4], [5, 4, 2]]), None),
        scored=np.array([1, 2, 4, 5]),
        scores=np.array([0.2, 0.9, 0.5, 0.9]),
        passages=PASSAGES,
        k=2,
    )
    assert contexts.rows.tolist() == [[2, 4], [2, 5]]


def test_sampling_depends_on_seed_and_question_alone() -> None:
    scores = np.linspace(1, 2, 6)
    sampling = Sampling(alpha=2.0, num_rankings=50, seed=3)
    first = sampled(scores, "Which river?", sampling, 3)
    assert first.rows.shape == (50, 3)
    assert (first.rows == sampled(scores, "Which river?", sampling, 3).rows).all()
    assert (first.rows != sampled(scores, "Which lake?", sampling, 3).rows).any()
    assert (first.rows != sampled(scores, "Which river?", Sampling(2.0, 50, 4), 3).rows).any()


def test_sampled_rankings_come_with_their_probability() -> None:
    # Two items with scores at the ends: normalised to 1 and 2, weights exp(1) and exp(2) at alpha 1.
    contexts = sampled(np.array([2.0, 1.0]), "q", Sampling(alpha=1.0, num_rankings=20, seed=0), 1)
    assert contexts.log_probabilities is not None
    first = np.log(np.e**2 / (np.e + np.e**2))
    expected = [first if row == [0] else np.log1p(-np.exp(first)) for row in contexts.rows.tolist()]
    assert contexts.log_probabilities.tolist() == pytest.approx(expected)


def _to(target: Target, scores: Sequence[float], k: int, *, reranked: bool) -> tuple[Contexts, Policy]:
    named = [passage(name, provider="AB"[place % 2]) for place, name in enumerate("abcd"[: len(scores)])]
    sampling = Sampling(None, 2000, 3, target)
    return sampled_to(target, np.array(scores), named, "q", sampling, k, reranked=reranked)


def test_a_reranked_list_has_probabilities_as_relevance() -> None:
    contexts, policy = _to(RelevanceLoss(0.1), [0.9, 0.5, 0.1, 0.05], 2, reranked=True)
    assert policy.relevance_kind == Policy.RELEVANCE_PROBABILITY
    assert policy.best_relevance == pytest.approx(1.4)
    assert policy.relevance == pytest.approx(0.9 * 1.4, abs=1e-4)
    assert policy.target_relevance_loss == 0.1
    same = sampled(np.array([0.9, 0.5, 0.1, 0.05]), "q", Sampling(policy.alpha, 2000, 3), 2)
    assert contexts.rows.tolist() == same.rows.tolist()


@pytest.mark.parametrize(("scores", "reranked"), [([0.9, 0.5, 0.1], False), ([3.0, 2.0, 1.0], True)])
def test_other_scores_count_from_the_last_to_the_best(scores: list[float], reranked: bool) -> None:
    _, policy = _to(Disparity(0.5), scores, 1, reranked=reranked)
    assert policy.relevance_kind == Policy.RELEVANCE_NORMALIZED_SCORE
    assert policy.best_relevance == pytest.approx(1.0)
    assert policy.disparity == pytest.approx(0.5, abs=1e-3)


def test_shares_are_drawn_from_a_decomposition() -> None:
    # a and c are of A, b and d of B; A may have 0.7 of two places: a always, c with 0.4, b with 0.6.
    contexts, policy = _to(
        GroupShares((GroupShare("provider", "A", at_most=0.7),)), [0.9, 0.2, 0.8, 0.1], 2, reranked=True
    )
    assert policy.kind == Policy.KIND_DECOMPOSED
    assert not policy.HasField("alpha")
    (outcome,) = policy.shares
    assert (outcome.share, outcome.kept, policy.reached) == (pytest.approx(0.7), True, True)
    rows = {tuple(row) for row in contexts.rows.tolist()}
    assert rows == {(0, 1), (0, 2)}
    assert contexts.log_probabilities is not None
    expected = [np.log(0.4 if row == [0, 2] else 0.6) for row in contexts.rows.tolist()]
    assert contexts.log_probabilities.tolist() == pytest.approx(expected)


def test_a_target_without_its_dial_is_not_sampled() -> None:
    with pytest.raises(ValueError, match="no alpha"):
        sampled(np.array([2.0, 1.0]), "q", Sampling(None, 1, 0, Disparity(0.5)), 1)


def test_the_same_passages_in_another_order_are_another_context() -> None:
    contexts = Contexts(np.array([[0, 1], [1, 0], [0, 1], [2, 3], [1, 0]]), None)
    groups = [(row.tolist(), samples) for row, samples in distinct(contexts, 5)]
    assert groups == [([0, 1], (0, 2)), ([1, 0], (1, 4)), ([2, 3], (3,))]


def test_samples_beyond_those_to_answer_are_left_out() -> None:
    contexts = Contexts(np.array([[0], [1], [0]]), None)
    assert [samples for _, samples in distinct(contexts, 2)] == [(0,), (1,)]
    assert distinct(contexts, 0) == []


def test_contexts_of_nothing_are_one() -> None:
    assert [samples for _, samples in distinct(Contexts(np.empty((1, 0), dtype=np.int64), None), 1)] == [(0,)]


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=1, max_size=30), st.integers(0, 30)
)
def test_every_answered_sample_is_in_exactly_one_group(rows: list[list[int]], num_answers: int) -> None:
    contexts = Contexts(np.array(rows), None)
    groups = distinct(contexts, num_answers)
    assert sorted(s for _, samples in groups for s in samples) == list(range(min(num_answers, len(rows))))
    assert all(rows[s] == row.tolist() for row, samples in groups for s in samples)
