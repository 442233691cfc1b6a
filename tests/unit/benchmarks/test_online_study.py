"""The study of learning while agents ask: what is replayed and compared, and its page by its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("bm25s")

from benchmarks.online_study import headroom, queries, records, replaying, tables
from benchmarks.online_study.queries import Asked
from benchmarks.page import placed
from benchmarks.rerank_table import judged_sets
from benchmarks.rerank_table.judged_sets import JudgedSet
from evenmesh_generator.domain import Passage as Read
from evenmesh_reranker.backends.adapters import LowRankAdapter
from evenmesh_reranker.domain import Agent, Fusion, Passage
from evenmesh_training.online.replay import Query
from tests.support import tiny_encoders, tiny_models

TEXTS = ("Rust is red.", "A boat of steel sails.", "Moss is green.", "Boats are made of oak.")


class Counting:
    """A model that notes what it scores."""

    version = "counting"

    def __init__(self) -> None:
        self.scored: list[str] = []

    def scores(
        self, query: str, passages: Sequence[Passage], agent: Agent, adapter: object = None
    ) -> list[float]:
        self.scored += [one.id for one in passages]
        return [0.25 + 0.5 * (one.id == "p1") for one in passages]


def test_known_scores_are_not_computed_until_parameters_change() -> None:
    model: Any = Counting()
    known = replaying.KnownScores(model, {("q", "a"): 0.5, ("q", "b"): 0.75})
    passages = [Passage("b", "", ""), Passage("a", "", "")]
    assert known.scores("q", passages, Agent()) == [0.75, 0.5]
    assert known.scores("q", passages, Agent(), LowRankAdapter("v", {}, Fusion(1.0))) == [0.75, 0.5]
    assert not model.scored
    assert known.scores("q", passages, Agent(), tiny_encoders.low_rank(1)) == [0.25, 0.25]
    assert known.version == "counting"


def test_candidates_are_those_of_the_hybrid_and_are_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passages = [Read(f"p{at}", "", text) for at, text in enumerate(TEXTS)]
    judged = JudgedSet("tiny", passages, {"1": "steel boat"}, {"1": {"p1": 2, "p3": 0}})
    monkeypatch.setattr(judged_sets, "load", lambda *_: judged)
    model: Any = Counting()
    queries.score("tiny", model, tmp_path)
    queries.score("tiny", model, tmp_path)
    [asked] = queries.read("tiny", tmp_path)
    assert (asked.id, asked.query.text) == ("1", "steel boat")
    ids = [one.id for one in asked.query.passages]
    assert ids[0] == "p1"
    assert sorted(ids) == ["p0", "p1", "p2", "p3"]
    assert asked.query.scores is not None
    assert list(asked.query.scores) == sorted(asked.query.scores, reverse=True)
    assert asked.query.usefulness == tuple(float(one == "p1") for one in ids)
    assert asked.scores == tuple(0.25 + 0.5 * (one == "p1") for one in ids)
    assert len(model.scored) == 4
    (tmp_path / "tiny.jsonl").write_text((tmp_path / "tiny.jsonl").read_text() + '{"id": "2"')
    assert len(queries.read("tiny", tmp_path)) == 1  # of a run that was stopped
    assert queries.read("another", tmp_path) == []


def test_agents_are_asked_in_an_order_of_the_seed_and_what_is_frozen_learns_nothing(tmp_path: Path) -> None:
    folder = tiny_models.cross_encoder(tmp_path)
    model = tiny_encoders.encoder(folder, version="v")
    passages = tuple(Passage(f"p{at}", "", text) for at, text in enumerate(TEXTS * 2))
    asked = [
        Asked(
            str(at),
            Query(f"query {at}", passages, (4.0, 3.0, 2.0, 1.0) * 2, (0.0, 1.0) * 4),
            (0.4, 0.1, 0.4, 0.1, 0.9, 0.1, 0.9, 0.1),
        )
        for at in range(10)
    ]
    rows = {seed: list(replaying.replayed("x", asked, model, learns=None, seed=seed)) for seed in (1, 2)}
    for one in rows.values():
        assert sorted(row["query"] for row in one) == sorted(map(str, range(10)))
        assert [row["position"] for row in one] == list(range(10))
        # By the model alone, as its config asks for: the best four are p4, p6, p0 and p2, which are useless.
        assert {(row["utility"], row["rounds"]) for row in one} == {(0.0, 0)}
    assert [row["query"] for row in rows[1]] != [row["query"] for row in rows[2]]


def test_headroom_is_what_the_best_fusion_and_an_oracle_show() -> None:
    """The first stage has two of four useful among its best four, the model three, and four of eight are useful."""
    passages = tuple(Passage(f"p{at}", "", f"word{at}") for at in range(8))
    useful = (1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0)
    scores = (0.1, 0.2, 0.3, 0.9, 0.9, 0.9, 0.5, 0.1)
    asked = [Asked("1", Query("q", passages, tuple(float(8 - at) for at in range(8)), useful), scores)]
    found = headroom.row("x", asked, Fusion(4.0))
    assert (found["first stage"], found["model"], found["oracle"]) == (0.5, 0.75, 1.0)
    assert found["best fusion"] >= max(found["model"], found["frozen"])


def _row(agent: str, seed: int, position: int, query: str, utility: float) -> dict[str, Any]:
    return {
        "agent": agent,
        "seed": seed,
        "position": position,
        "query": query,
        "utility": utility,
        "rounds": 0,
    }


def test_differences_are_those_of_queries_after_the_first_round() -> None:
    agent = tables.AGENTS[0]
    frozen = [_row(agent, seed, 0, query, 0.5) for seed in (1, 2) for query in "abc"]
    learned = [
        _row(agent, seed, at, query, value)
        for seed, stream in (
            (1, (("a", 9.0), ("b", 1.0), ("c", 0.5))),
            (2, (("c", 9.0), ("a", 0.5), ("b", 0.75))),
        )
        for at, (query, value) in enumerate(stream)
    ]
    found = tables.differences(learned, frozen, since=1)
    # a counts in seed 2 alone, c in seed 1, and b in both.
    assert {name: values.tolist() for name, values in found.items()} == {agent: [0.0, 0.375, 0.0]}
    last = tables.differences(learned, frozen, since=2 / 3)
    np.testing.assert_array_equal(last[agent], [0.25, 0.0])  # b in seed 2, c in seed 1


def test_rows_of_an_agent_and_a_seed_are_replaced(tmp_path: Path) -> None:
    records.add("model", [_row("b", 1, 0, "q", 0.5), _row("b", 1, 1, "r", 0.5)], tmp_path)
    records.add("model", [_row("a", 1, 0, "q", 0.25)], tmp_path)
    records.add("model", [_row("b", 1, 0, "q", 1.0)], tmp_path)
    assert [(row["agent"], row["query"], row["utility"]) for row in records.read("model", tmp_path)] == [
        ("a", "q", 0.25),
        ("b", "q", 1.0),
    ]


def test_the_page_says_what_the_records_say(tmp_path: Path) -> None:
    tables.summarize(tmp_path)
    for name in tables.FILES:
        assert (tmp_path / f"{name}.csv").read_text() == (tables.OUT / f"{name}.csv").read_text()
    page = tables.OUT.with_suffix(".md").read_text(encoding="utf-8")
    assert placed(page, tables.tables(tmp_path)) == page
