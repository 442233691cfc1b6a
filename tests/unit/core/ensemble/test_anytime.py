import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from evenmesh_core.ensemble import anytime_vote, vote
from evenmesh_core.errors import InvalidInput

property_test = settings(derandomize=True, deadline=None, max_examples=100)
POOLINGS = ["mean", "max", "majority", "plurality"]
# Values on both sides of the threshold, and at it; weights with ties, one at the filter, one below it.
levels = st.sampled_from([0.0, 0.3, 0.8, 0.9, 1.0])
weights = st.lists(st.sampled_from([0.05, 0.1, 0.2, 0.4, 0.6]), min_size=4, max_size=4)
states = st.lists(st.sampled_from(["arrived", "waiting", "waiting", "missing"]), min_size=4, max_size=4)


def flags(states, wanted):
    return np.array([state == wanted for state in states])


def winner_among(pool, similarity, own, **options):
    """The winner of the vote itself among the answers of a pool; None where none of them may win."""
    inside = np.flatnonzero(pool)
    if not np.any(np.array(own)[inside] > 0.1):
        return None
    some = similarity[:, inside[:, None], inside]
    return int(inside[vote(some, [1.0], np.array(own)[inside], **options).winner])


def every_outcome(similarity, arrived, waiting, symmetric, ends=(0.0, 1.0)):
    """Every set of answers that may come, and every value of what is unknown among them."""
    for comes in itertools.product([False, True], repeat=int(waiting.sum())):
        pool = arrived.copy()
        pool[np.flatnonzero(waiting)[list(comes)]] = True
        pairs = [
            (i, j)
            for i, j in itertools.permutations(np.flatnonzero(pool).tolist(), 2)
            if not (arrived[i] and arrived[j]) and (i < j or not symmetric)
        ]
        for values in itertools.product(ends, repeat=len(pairs)):
            outcome = similarity.copy()
            for (i, j), value in zip(pairs, values, strict=True):
                outcome[0, i, j] = value
                if symmetric:
                    outcome[0, j, i] = value
            yield pool, outcome


def winners_of(now, outcomes, own, **options):
    """The winners of outcomes: of all of them, or of so many that the present one wins one and another one.

    With two winners nothing may be decided, whatever the other outcomes are.
    """
    winners = set()
    for pool, outcome in outcomes:
        winners.add(winner_among(pool, outcome, own, **options))
        if len(winners) > 1 and now.winner in winners:
            break
    return winners


def cases(seed, count, retrievers, symmetric, low=0.0, high=1.0):
    rng = np.random.default_rng(seed)
    values = [low, (low + high) / 2, 0.8, 0.9, high]
    for _ in range(count):
        similarity = rng.choice(values, (1, retrievers, retrievers))
        if symmetric:
            similarity = np.triu(similarity[0], 1)[None]
            similarity = similarity + similarity.transpose(0, 2, 1)
        own = rng.choice([0.05, 0.1, 0.2, 0.2, 0.4, 0.6], retrievers)
        own[rng.integers(retrievers)] = 0.4
        state = rng.choice(["arrived", "arrived", "waiting", "missing"], retrievers)
        yield similarity, own, state == "arrived", state == "missing"


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("drop_filtered", [True, False])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_decided_if_and_only_if_every_outcome_keeps_the_winner(pooling, drop_filtered, symmetric):
    """Brute force over 0/1 outcomes and over who comes. Between the ends nothing new happens: see the
    docstring's argument, and the test of values between below."""
    options = {"pooling": pooling, "drop_filtered": drop_filtered}
    seen = set()
    for retrievers, count in ((2, 60), (3, 150), (4, 150 if symmetric else 25)):
        for similarity, own, arrived, missing in cases(retrievers, count, retrievers, symmetric):
            waiting = ~(arrived | missing)
            if not symmetric and retrievers == 4 and waiting.sum() > 2:
                continue  # 2^12 outcomes
            now = anytime_vote(similarity, [1.0], own, arrived, missing, symmetric=symmetric, **options)
            outcomes = every_outcome(similarity, arrived, waiting, symmetric)
            winners = winners_of(now, outcomes, own, **options)
            assert now.winner in winners
            assert now.decided == (winners == {now.winner})
            if waiting.any():
                seen.add(now.decided)
    assert seen == {True, False}


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.0), (0.0, 0.5), (0.0, 0.8)])
@pytest.mark.parametrize("drop_filtered", [True, False])
@pytest.mark.parametrize("pooling", ["majority", "plurality"])
def test_decided_where_the_bounds_leave_it_open_only_who_comes(pooling, drop_filtered, low, high):
    """All that is unknown is alike, or none of it is: outcomes differ in who comes."""
    options = {"pooling": pooling, "drop_filtered": drop_filtered}
    seen = set()
    for retrievers, count in ((3, 100), (5, 300), (6, 150)):
        for similarity, own, arrived, missing in cases(7, count, retrievers, True):
            waiting = ~(arrived | missing)
            now = anytime_vote(similarity, [1.0], own, arrived, missing, low=low, high=high, **options)
            outcomes = every_outcome(similarity, arrived, waiting, True, ends=(high,))
            winners = winners_of(now, outcomes, own, **options)
            assert now.decided == (winners == {now.winner})
            if waiting.any():
                seen.add(now.decided)
    assert seen == {True, False}


@pytest.mark.parametrize(("low", "high"), [(0.6, 1.0), (0.0, 0.5)])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_decided_where_the_unknown_is_bound_more_narrowly_than_the_known(pooling, low, high):
    for similarity, own, arrived, missing in cases(9, 300, 4, True):
        waiting = ~(arrived | missing)
        now = anytime_vote(similarity, [1.0], own, arrived, missing, pooling=pooling, low=low, high=high)
        outcomes = every_outcome(similarity, arrived, waiting, True, ends=(low, high))
        winners = winners_of(now, outcomes, own, pooling=pooling)
        assert now.decided == (winners == {now.winner})


@pytest.mark.parametrize("pooling", POOLINGS)
def test_decided_with_similarities_below_zero(pooling):
    for similarity, own, arrived, missing in cases(3, 150, 4, True, low=-1.0):
        waiting = ~(arrived | missing)
        now = anytime_vote(similarity, [1.0], own, arrived, missing, pooling=pooling, low=-1.0)
        outcomes = every_outcome(similarity, arrived, waiting, True, ends=(-1.0, 1.0))
        winners = winners_of(now, outcomes, own, pooling=pooling)
        assert now.decided == (winners == {now.winner})


def test_some_of_those_waited_for_may_turn_a_vote_that_all_of_them_would_not():
    # Six answers, of which 1 and 2 agree; five that vote only are waited for, and surely alike to all. With a
    # of them, 1 has 1 + a of 5 + a others and 0 has a: with 3 or 4 of them only 1 and 2 have half of the
    # others, with fewer nobody has, with 5 everybody.
    similarity = np.zeros((1, 11, 11))
    similarity[0, 1, 2] = similarity[0, 2, 1] = 1.0
    own = [0.5] * 6 + [0.1] * 5
    known = np.arange(11) < 6
    options = {"pooling": "majority", "low": 0.9}
    now = anytime_vote(similarity, [1.0], own, known, np.zeros(11), **options)
    assert (now.winner, now.decided) == (0, False)
    outcome = np.where(known[:, None] & known, similarity, 1.0)
    winners = [winner_among(np.arange(11) < 6 + a, outcome, own, pooling="majority") for a in range(6)]
    assert winners == [0, 0, 0, 1, 1, 0]


def test_one_answer_alone_may_win_that_would_not_among_all():
    # Bounds above what is known, so that whoever comes lifts the leader too.
    similarity = np.zeros((1, 6, 6))
    own = [0.6, 0.11, 0.11, 0.2, 0.2, 0.2]
    here = np.arange(6) < 3
    now = anytime_vote(similarity, [1.0], own, here, np.zeros(6), low=0.6)
    assert (now.winner, now.decided) == (0, False)
    outcome = np.where(here[:, None] & here, 0.0, 0.6)
    outcome[3] = outcome[:, 3] = [0.6, 1, 1, 1, 1, 1]
    # alone: 0.2 · (0.6 + 1 + 1) / 3 > 0.6 · 0.6 / 3; among all: 0.2 · (0.6 + 4) / 5 < 0.6 · 3 · 0.6 / 5
    assert winner_among(np.arange(6) < 4, outcome[None], own) == 3
    assert winner_among(np.arange(6) < 6, outcome[None], own) == 0


@property_test
@given(
    arrays(np.float64, (1, 5, 5), elements=levels), weights, states, st.sampled_from(POOLINGS), st.randoms()
)
def test_once_decided_the_winner_stays(similarity, own, state, pooling, random):
    """Answers come or go missing one by one, with any similarities, those between the ends too."""
    own, state = [0.4, *own], ["waiting", *state]
    similarity = (similarity + similarity.transpose(0, 2, 1)) / 2
    settled = None
    while True:
        now = anytime_vote(
            similarity, [1.0], own, flags(state, "arrived"), flags(state, "missing"), pooling=pooling
        )
        if settled is not None:
            assert now.decided
            assert now.winner == settled
        if now.decided:
            settled = now.winner
        waiting = [place for place, value in enumerate(state) if value == "waiting"]
        if not waiting:
            break
        state[random.choice(waiting)] = random.choice(["arrived", "arrived", "missing"])
    assert now.decided


@property_test
@given(arrays(np.float64, (2, 4, 4), elements=levels), weights, st.sampled_from(POOLINGS), st.booleans())
def test_with_all_answers_it_is_the_vote(similarity, own, pooling, drop):
    own[1] = 0.5
    options = {"pooling": pooling, "drop_filtered": drop}
    outcome = vote(similarity, [0.7, 0.3], own, **options)
    now = anytime_vote(similarity, [0.7, 0.3], own, [True] * 4, [False] * 4, **options)
    assert (now.winner, now.arrived, now.decided) == (outcome.winner, 4, True)
    np.testing.assert_array_equal(now.scores, outcome.scores)


def test_a_lead_by_hand():
    # Answers 0 and 1 agree at 0.9, both have weight 1; 2 has weight w and is waited for. If it comes, 0 has
    # at least (0.9 + 0) / 2 and 2 has at most w (1 + 1) / 2, or w (0 + 1) / 2 against the same 0.9 / 2.
    # 1 may gain what 0 does not: (0.9 + 1) / 2 > 0.9 / 2, so nothing is decided with equal weights.
    similarity = np.full((1, 3, 3), math.nan)
    similarity[0, 0, 1] = similarity[0, 1, 0] = 0.9
    similarity[0, [0, 1], [0, 1]] = 1.0
    arrived, missing = [True, True, False], [False, False, False]
    assert not anytime_vote(similarity, [1], [1, 1, 0.2], arrived, missing).decided
    # With weights 1, 0.4 and 0.2: 1 reaches 0.4 (0.9 + 1) / 2 = 0.38 < 0.45, and 2 reaches 0.2 · 1.
    now = anytime_vote(similarity, [1], [1, 0.4, 0.2], arrived, missing)
    assert (now.winner, now.decided, now.arrived) == (0, True, 2)
    np.testing.assert_allclose(now.scores, [1 * 0.9, 0.4 * 0.9, np.nan])
    # ... and with 0.5 for 1: 0.5 · 1.9 / 2 = 0.475 > 0.45
    assert not anytime_vote(similarity, [1], [1, 0.5, 0.2], arrived, missing).decided


def test_who_never_comes_leaves_the_pool():
    similarity = [[[1.0, 0.2, 0.9], [0.2, 1.0, 0.3], [0.9, 0.3, 1.0]]]
    now = anytime_vote(similarity, [1], [1, 1, 1], [True, True, False], [False, False, True], pooling="mean")
    assert (now.winner, now.arrived, now.decided) == (0, 2, True)
    np.testing.assert_allclose(now.scores, [0.2, 0.2, np.nan])


def test_before_any_answer_there_is_no_winner():
    now = anytime_vote(np.zeros((1, 2, 2)), [1], [1, 1], [False, False], [False, False])
    assert (now.winner, now.arrived, now.decided) == (None, 0, False)
    assert np.isnan(now.scores).all()


def test_nobody_left_to_win_is_final():
    nobody = anytime_vote(np.zeros((1, 3, 3)), [1], [1, 1, 0.1], [False] * 3, [True, True, False])
    assert (nobody.winner, nobody.decided) == (None, True)


def test_the_only_answer_wins_and_is_decided_once_no_other_may_come():
    alone = anytime_vote(np.ones((1, 2, 2)), [1], [1, 1], [False, True], [True, False])
    assert (alone.winner, alone.decided) == (1, True)
    assert math.isnan(alone.scores[1])
    assert not anytime_vote(np.ones((1, 2, 2)), [1], [1, 1], [False, True], [False, False]).decided


def test_narrower_bounds_decide_earlier():
    similarity = np.zeros((2, 3, 3))
    similarity[:, 0, 1] = similarity[:, 1, 0] = 0.9
    arguments = (similarity, [1, 1], [1, 0.9, 0.2], [True, True, False], [False] * 3)
    assert not anytime_vote(*arguments).decided
    # between 0.4 and 0.5 by both metrics: 0 has at least (0.9 + 0.4) / 2, 1 at most 0.9 (0.9 + 0.5) / 2
    assert anytime_vote(*arguments, low=0.4, high=[0.5, 0.5]).decided


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"missing": [True, False]}, r"missing\[0\] is True; allowed: false for an answer that arrived"),
        ({"missing": [False]}, r"len\(missing\) is 1"),
        ({"arrived": [0.5, 0]}, "arrived is .*a vector of 0 and 1"),
        ({"similarity": np.zeros((1, 3, 3))}, r"similarity.shape is \(1, 3, 3\)"),
        ({"similarity": [[[0, math.nan], [0, 0]]], "arrived": [1, 1]}, r"similarity\[0, 0, 1\] is nan"),
        ({"retriever_weights": [0.1, 0.0]}, "retriever_weights is .*at least one above 0.1"),
        ({"retriever_weights": [1]}, r"len\(retriever_weights\) is 1"),
        ({"metric_weights": [1, 1]}, "metric_weights.shape"),
        ({"pooling": "median"}, "pooling is 'median'"),
        ({"low": 2.0}, "low is 2.0; allowed: at most high"),
        ({"high": [1.0, 1.0]}, r"len\(high\) is 2"),
    ],
)
def test_bad_input_is_refused(arguments, complaint):
    good = {
        "similarity": np.zeros((1, 2, 2)),
        "metric_weights": [1],
        "retriever_weights": [1, 1],
        "arrived": [True, False],
        "missing": [False, False],
    }
    with pytest.raises(InvalidInput, match=complaint):
        anytime_vote(**(good | arguments))
