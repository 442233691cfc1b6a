"""A query is read once or twice, and a text has the mean of what its readings say."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from evenmesh_reranker.backends.readings import readings, rows, scores
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.ports import LoadedModel, Row

STORY = "It snowed. How high is it?"


def model(*, reads_asking: bool) -> LoadedModel:
    def of(query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        del agent
        return [Row((len(query), int(text)), None) for text in texts]

    return cast(LoadedModel, SimpleNamespace(reads_asking=reads_asking, rows=of))


@pytest.mark.parametrize(
    ("query", "read"),
    [
        (STORY, (STORY, "How high is it?")),
        ("How high is it?", ("How high is it?",)),
        ("height of Mont Blanc", ("height of Mont Blanc",)),
        ("", ("",)),
    ],
)
def test_a_query_is_read_again_where_it_says_something_and_asks(query: str, read: tuple[str, ...]) -> None:
    assert readings(model(reads_asking=True), query) == read
    assert readings(model(reads_asking=False), query) == (query,)


def test_pairs_of_one_text_stand_together() -> None:
    found = rows(model(reads_asking=True), ("ab", "a"), ["7", "8"], Agent())
    assert [row.ids for row in found] == [(2, 7), (1, 7), (2, 8), (1, 8)]
    assert rows(model(reads_asking=True), ("ab", "a"), [], Agent()) == []


def test_a_text_has_the_mean_of_its_log_odds() -> None:
    """By hand: of 1/2 and 4/5 the odds are 1 and 4, their geometric mean 2, and 2/3 has odds of 2."""
    assert scores([0.5, 0.8, 0.2, 0.8], 2) == pytest.approx([2 / 3, 0.5])


def test_scores_of_one_reading_stay_to_the_letter() -> None:
    values = [0.1, 0.7000000000000001, 0.0, 1.0]
    assert scores(values, 1) == values


def test_certain_scores_have_finite_log_odds() -> None:
    low, middle, high = scores([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], 2)
    assert 0 < low < 1e-11
    assert middle == pytest.approx(0.5, abs=1e-4)
    assert 1 - 1e-11 < high < 1
