"""The readings of a query that rankings are compared by, and the rows of their table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.question_rankings import ASKING, MEAN, readings, row
from benchmarks.question_stories import AS_IT_STANDS, Case
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.ports import LoadedModel, Row


class ByQuery:
    """Scores a passage by the query alone."""

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores
        self._asked = 0.0

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        del agent
        self._asked = self._scores[query]
        return [Row((1,), None)] * len(texts)

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[Any]) -> list[float]:
        del adapters
        return [self._asked] * len(rows)


def read(question: str, scores: dict[str, float]) -> dict[str, float]:
    case = Case("turns", question, [("Alps", "Snow."), ("Bees", "Honey.")], [])
    found = readings(cast(LoadedModel, ByQuery(scores)), case)
    return {name: float(values[0]) for name, values in found.items()}


def test_a_query_is_read_as_it_stands_as_what_asks_and_as_their_mean() -> None:
    """Log-odds of 0.5 and of 0.8 by hand: 0 and log 4."""
    found = read("It snowed. How high is it?", {"It snowed. How high is it?": 0.5, "How high is it?": 0.8})
    expected = {AS_IT_STANDS: 0.0, ASKING: np.log(4), MEAN: np.log(4) / 2}
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("question", ["How high is it?", "height of the Alps"])
def test_a_query_that_only_asks_or_never_asks_is_read_once(question: str) -> None:
    assert read(question, {question: 0.8}) == pytest.approx(
        dict.fromkeys((AS_IT_STANDS, ASKING, MEAN), np.log(4))
    )


def test_a_row_has_shares_and_paired_differences() -> None:
    """By hand: what asks gains 10 of 40 questions, the mean all 20 that were wrong."""
    stands = np.repeat([0.0, 1.0], 20)
    asks, mean = stands.copy(), np.ones(40)
    asks[:10] = 1
    cells = row("turns", {AS_IT_STANDS: stands, ASKING: asks, MEAN: mean})
    assert list(cells.values())[:5] == ["turns", "40", "0.500", "0.750", "1.000"]
    assert [cells[f"{name} − {AS_IT_STANDS}"].split()[0] for name in (ASKING, MEAN)] == ["+0.250", "+0.500"]
