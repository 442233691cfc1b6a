"""Beam search by hand; that it is transformers' is shown with models in test_loop."""

from __future__ import annotations

import math

import pytest

from evenmesh_generator.runtime.decoding.beams import BeamSearch, Candidate, Trail

END = 9


def _candidates(search: BeamSearch, tables: list[dict[int, float]]) -> list[Candidate]:
    """Every continuation: ``tables`` [beam] gives the probability of each token."""
    return [
        Candidate(score + math.log(p), beam, token, math.log(p))
        for beam, (score, table) in enumerate(zip(search.scores, tables, strict=True))
        for token, p in table.items()
    ]


def test_the_greedy_path_is_not_always_the_best() -> None:
    """P(1) = 0.6 and P(2) = 0.4; after 1 the best is 0.3, after 2 it is 0.9: 0.6 · 0.3 < 0.4 · 0.9."""
    search = BeamSearch(2, 2, frozenset({END}), length_penalty=0.0)
    first = {1: 0.6, 2: 0.4}
    onward = search.advance(_candidates(search, [first, first]))
    assert onward == ([0, 0], [1, 2])
    done = search.advance(_candidates(search, [{3: 0.3, 4: 0.3, 5: 0.4}, {3: 0.9, 4: 0.05, 5: 0.05}]))
    assert done is None
    best = search.best
    assert best.trail is not None
    assert best.trail.tokens() == [2, 3]
    assert best.log_probability == pytest.approx(math.log(0.4 * 0.9))
    assert best.score == pytest.approx(math.log(0.4 * 0.9), rel=1e-6)


@pytest.mark.parametrize(("penalty", "tokens"), [(0.0, [END]), (2.0, [1, 3, END])])
def test_the_length_penalty_favours_long_answers(penalty: float, tokens: list[int]) -> None:
    """ln 0.5 against ln(0.5 · 0.9 · 0.9); divided by 1² and 3², the longer is nearer to zero."""
    assert math.log(0.5) > math.log(0.5 * 0.9 * 0.9)
    assert math.log(0.5) / 1**2 < math.log(0.5 * 0.9 * 0.9) / 3**2
    search = BeamSearch(2, 3, frozenset({END}), length_penalty=penalty, early_stopping="never")
    first = {END: 0.5, 1: 0.5 - 1e-6, 2: 1e-6}
    steps = [[first, first], [{3: 0.9, 4: 0.1}, {3: 0.5, 4: 0.5}], [{END: 0.9, 4: 0.1}, {4: 1.0, 3: 1e-9}]]
    for tables in steps:
        if search.advance(_candidates(search, tables)) is None:
            break
    assert search.best.trail is not None
    assert search.best.trail.tokens() == tokens


def test_early_stopping_takes_the_first_that_are_done() -> None:
    search = BeamSearch(2, 10, frozenset({END}), early_stopping=True)
    first = {END: 0.4, 1: 0.35, 2: 0.25}
    assert search.advance(_candidates(search, [first, first])) == ([0, 0], [1, 2])
    assert search.advance(_candidates(search, [{END: 0.9, 1: 0.1}, {1: 0.5, 2: 0.5}])) is None
    assert search.best.log_probability == pytest.approx(math.log(0.35 * 0.9))
    # (ln 0.35 · 0.9) / 2 is nearer to zero than ln 0.4
    assert math.log(0.35 * 0.9) / 2 > math.log(0.4)


def test_an_end_outside_of_the_best_is_no_answer() -> None:
    """Two beams: the end is third, and lets the other two go on."""
    search = BeamSearch(2, 10, frozenset({END}))
    first = {1: 0.5, 2: 0.3, END: 0.2}
    assert search.advance(_candidates(search, [first, first])) == ([0, 0], [1, 2])
    assert not search.best.ended


def test_candidates_leave_enough_that_go_on() -> None:
    """Each of four beams may end with either of two tokens: 8 can end, 12 leave 4."""
    assert BeamSearch(4, 5, frozenset({8, 9})).candidates == 12
    assert BeamSearch(4, 5, frozenset()).candidates == 8


def test_a_trail_knows_its_tokens() -> None:
    assert Trail(3, Trail(2, Trail(1, None))).tokens() == [1, 2, 3]
