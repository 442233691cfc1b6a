"""Conversations and divergences take time and memory linear in their input."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from evenmesh_core.exposure import group_exposure
from evenmesh_core.group_fairness import Attribute, Nugget, conversation
from evenmesh_core.group_fairness.divergences import rnod


def test_rnod_is_the_double_sum_of_its_definition() -> None:
    draws = np.random.default_rng(3)
    for groups in (2, 3, 7, 40):
        p, gold = draws.dirichlet(np.ones(groups)), draws.dirichlet(np.ones(groups))
        gold[0] += gold[1]
        gold[1] = 0.0
        weighted = [sum(abs(i - j) * (p[j] - gold[j]) ** 2 for j in range(groups)) for i in range(groups)]
        expected = np.sqrt(np.mean([weighted[i] for i in range(groups) if gold[i] > 0]) / (groups - 1))
        assert rnod(p, gold) == pytest.approx(expected, rel=1e-12)


def test_rnod_of_many_groups_needs_no_table_of_pairs() -> None:
    gold = np.full(5000, 1 / 5000)
    tracemalloc.start()
    assert rnod(gold, gold) == 0.0
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * 2**20  # a table has 25 million cells


def test_a_cumulative_turn_adds_only_its_own_nuggets(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(5)
    turns = [
        [Nugget(1, 1.0, {"region": draws.dirichlet(np.ones(3)).tolist()}) for _ in range(t % 3)]
        for t in range(60)
    ]
    memberships = [nugget.membership["region"] for turn in turns for nugget in turn]
    ends = np.cumsum([len(turn) for turn in turns])
    expected = [
        np.mean(memberships[:end], axis=0) if len(turn) else None
        for turn, end in zip(turns, ends, strict=True)
    ]
    averaged: list[int] = []
    mean = np.mean
    monkeypatch.setattr(
        np, "mean", lambda values, **axis: averaged.append(len(values)) or mean(values, **axis)
    )
    found = conversation(turns, {"region": Attribute([0.2, 0.3, 0.5])}, method="cumulative")
    for one, other in zip(found.by_attribute["region"].achieved, expected, strict=True):
        assert (one is None) == (other is None)
        assert one is None or np.array_equal(one, other)
    assert not averaged  # sums go on from turn to turn: none averages all before it


def test_a_check_that_raises_ends_a_conversation() -> None:
    class GoneError(Exception):
        pass

    def check() -> None:
        raise GoneError

    with pytest.raises(GoneError):
        conversation([[Nugget(1, 1.0, {"a": [1.0, 0.0]})]], {"a": Attribute([0.5, 0.5])}, check=check)


def test_one_long_name_of_a_group_takes_its_own_memory_alone() -> None:
    labels = ["g" * 1000, *("ab" * 10_000)]
    values = np.full(len(labels), 0.5)
    tracemalloc.start()
    groups = group_exposure(values, values, labels)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert groups.labels == ("a", "b", "g" * 1000)
    assert groups.exposure.tolist() == [5000.0, 5000.0, 0.5]
    assert most < 16 * 2**20  # an array of texts has 4,000 bytes for each
