"""What of an agent's feedback is not learned from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenmesh_reranker.feedback.domain import Flag
from evenmesh_reranker.feedback.quality import JudgingHistory, QualityRules

RULES = QualityRules(fewest_judged_again=4, most_contradicted=0.25, constant_run=3)


@pytest.mark.parametrize(
    ("usefulness", "earlier", "flag"),
    [
        (0.0, None, Flag.NONE),
        (0.0, (0.5, 0.5), Flag.NONE),  # no further apart than half the range
        (0.0, (0.51, 0.51), Flag.CONTRADICTION),
        (1.0, (0.0, 0.0), Flag.CONTRADICTION),
        (0.5, (0.0, 1.0), Flag.CONTRADICTION),  # nothing is known of it any more
        (0.7, (0.6, 0.8), Flag.NONE),
    ],
)
def test_what_is_far_from_before_contradicts(
    usefulness: float, earlier: tuple[float, float] | None, flag: Flag
) -> None:
    assert JudgingHistory().judge(usefulness, earlier, RULES) is flag


def test_an_agent_that_always_says_the_same() -> None:
    conduct = JudgingHistory()
    values = [1.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0]
    flags = [conduct.judge(value, None, RULES) for value in values]
    assert flags == [Flag.NONE] * 3 + [Flag.CONSTANT] * 2 + [Flag.NONE] * 2


def test_an_agent_that_contradicts_itself_is_believed_again_when_it_is_repaired() -> None:
    rules = QualityRules(fewest_judged_again=4, most_contradicted=0.25, fade=0.5)
    conduct = JudgingHistory()
    for at in range(8):
        conduct.judge(at % 2, (1 - at % 2, 1 - at % 2), rules)
    assert conduct.judge(0.3, None, rules) is Flag.INCONSISTENT
    # Judged again, contradicted: 1.99, 1.99; then 1/2 of it and one more that agrees, until 0.5^n ≤ 1/4.
    flags = [conduct.judge(0.5 + at / 100, (0.5, 0.5), rules) for at in range(3)]
    assert flags == [Flag.INCONSISTENT, Flag.NONE, Flag.NONE]


def test_too_few_judged_again_say_nothing_of_the_agent() -> None:
    conduct = JudgingHistory()
    for _ in range(3):
        conduct.judge(1.0, (0.0, 0.0), RULES)
    assert conduct.judge(0.5, None, RULES) is Flag.NONE
    conduct.judge(1.0, (0.0, 0.0), RULES)
    assert conduct.judge(0.4, None, RULES) is Flag.INCONSISTENT


@given(st.lists(st.floats(0, 1), max_size=60), st.floats(0, 1))
def test_who_agrees_and_varies_is_never_flagged(values: list[float], other: float) -> None:
    conduct = JudgingHistory()
    for at, value in enumerate(values):
        varied = value if value != conduct.value else (value + 0.25) % 1
        assert conduct.judge(varied, (varied, varied) if at % 2 else None, RULES) is Flag.NONE
    assert 0 <= conduct.contradicted <= conduct.judged_again
