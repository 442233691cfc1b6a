"""What an oracle gives agents: rows from a run, and gains with their interval."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks import csv_rows, ium_headroom
from benchmarks.study_pages import cells
from evenmesh_training.ium import session
from evenmesh_training.ium.answer_collector import AnswerCollector
from evenmesh_training.ium.offline import Offline
from evenmesh_training.ium.systems import system
from tests.support.offline_world import PLACEMENT, PLAN, RECIPE, NoProgress, RuleMesh


def test_rows_have_what_each_shows_and_its_first_passage_alone(tmp_path: Path) -> None:
    with session.open_run(tmp_path, PLAN, RECIPE, begin="fresh", seed=1) as cache:
        collector = AnswerCollector(
            RECIPE, cache=cache, mesh=RuleMesh(), progress=NoProgress(), stop=lambda: False, in_flight=2
        )
        offline = Offline(
            PLAN, RECIPE, begin="fresh", seed=1, folder=tmp_path, collector=collector, placement=PLACEMENT
        )
        asyncio.run(offline.run([system(name, PLAN, rounds=1) for name in ("bm25", "oracle")]))
    found = ium_headroom.rows(PLAN, tmp_path)
    # BM25's first passage is p0, from which "even" alone answers; there is one for each in the candidates.
    assert [(row["agent"], row["bm25"], row["oracle"]) for row in found] == [
        *[("qa/even", 1.0, 1.0)] * 2,
        *[("qa/odd", 0.0, 1.0)] * 2,
    ]
    assert all(row["bm25_one"] == row["bm25"] and row["oracle_one"] == row["oracle"] for row in found)


def test_agents_count_alike_however_many_queries_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ium_headroom, "ROWS", tmp_path / "headroom.csv")
    monkeypatch.setattr(ium_headroom, "MEANS", tmp_path / "means.csv")
    one = {"agent": "a", "bm25": 0, "oracle": 1, "bm25_one": 0, "oracle_one": 0}
    other = {"agent": "b", "bm25": 1, "oracle": 1, "bm25_one": 0, "oracle_one": 1}
    csv_rows.write(ium_headroom.ROWS, [row | {"query": at} for at, row in enumerate((one, *[other] * 3))])
    ium_headroom.summarize()
    *agents, mean = cells.read(ium_headroom.MEANS)
    assert [(row["agent"], row["queries"], row["gain"], row["gain_one"]) for row in agents] == [
        ("a", "1", "1.0", "0.0"),
        ("b", "3", "0.0", "1.0"),
    ]
    assert (mean["queries"], mean["bm25"], mean["oracle"]) == ("4", "0.5", "1.0")
    # No agent's queries differ from each other, so nothing else can be drawn.
    assert [mean[f"gain{end}"] for end in ("", "_low", "_high")] == ["0.5"] * 3
    assert ium_headroom.cells()[-1]["gain, one passage"] == "0.500 [0.500, 0.500]"
