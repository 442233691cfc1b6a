"""The study of agents with something to gain: what they are asked, how they answer, and its page by its records."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("bm25s")

import evenmesh_models
from benchmarks import csv_rows, parquet_rows
from benchmarks.agent_study import choosing, learning, records, sets, tables
from benchmarks.agent_study.answering import HYBRID, Agents
from benchmarks.agent_study.ranking import fused, ordered, rows, score
from benchmarks.agent_study.sets import AGENTS, TEST, World
from benchmarks.compared_agents import verdict, verdict_of_each
from benchmarks.page import placed
from evenmesh_lab.files.plans import read_plan
from evenmesh_lab.files.trained_texts import find_trained_texts
from evenmesh_reranker.domain import Fusion, Passage
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_training.ium import start as training_start
from evenmesh_training.ium.plan import TRAIN, AgentTasks, Task
from tests.support import tiny_models

PASSAGES = [
    Passage("p0", "", "Rust is red. Boats are made of oak or steel."),
    Passage("p1", "Boats", "A boat of steel sails. It was built in Kiel."),
    Passage("p2", "", "Moss is green."),
]
LABELS = {"boats are of steel": {"p0": "SUPPORTS", "p1": "REFUTES"}}
TASKS = [
    Task(f"{agent.task_id}-{split}-{at}", agent.task_id, question, answers, split)
    for agent in AGENTS
    for split in (TRAIN, TEST)
    for at, (question, answers) in enumerate(
        [("boats are of steel", ("SUPPORTS",)), ("where was the boat built", ("Kiel",))]
    )
]
SMALL = World(AgentTasks(AGENTS, "all", tuple(TASKS)), PASSAGES, LABELS)
SPANS, LISTS, FOR, AGAINST, TURNS = AGENTS


def test_long_passages_are_cut_between_sentences() -> None:
    text = " ".join(f"Sentence {at} has {'many ' * 10}words." for at in range(6))
    found = list(sets.pieces("p", "T", text))
    assert [one.id for one in found] == ["p/0", "p/1"]
    assert " ".join(one.text for one in found) == text
    assert all(len(one.text.split()) <= sets.WORDS and one.title == "T" for one in found)
    (long,) = sets.pieces("q", "", "word " * 100)
    assert len(long.text.split()) == 100  # a sentence is never cut
    assert list(sets.pieces("r", "", " ")) == []


def test_agents_choose_sentences_or_say_what_people_said() -> None:
    agents = Agents(SMALL)
    claim = "boats are of steel"
    assert agents.alone(FOR, claim, PASSAGES) == ["SUPPORTS", "REFUTES", ""]
    assert agents.alone(FOR, "unknown", PASSAGES) == ["", "", ""]
    assert agents.alone(TURNS, claim, PASSAGES) == [
        "Boats are made of oak or steel.",
        "A boat of steel sails.",
        "Moss is green.",
    ]
    assert agents.alone(LISTS, "which materials are boats made of", PASSAGES)[0] == (
        "Boats are made of oak or steel."
    )
    assert LISTS.utility_of("Boats are made of oak or steel.", ["oak", "steel", "tin"]) == pytest.approx(
        2 / 3
    )
    assert [FOR.utility_of(one, ["SUPPORTS"]) for one in ("SUPPORTS", "REFUTES", "")] == [1, 0, 0]
    assert agents.search("boat steel", 2).passages[0].id == "p1"


def test_the_reader_answers_from_each_passage_alone() -> None:
    first, second = Agents(SMALL).alone(SPANS, "Where was the boat built?", PASSAGES[1:])
    assert first == "Kiel"
    assert second == "not in the passages"


def test_a_seed_learns_and_ranks_with_and_without_ids(tmp_path: Path) -> None:
    agents = Agents(SMALL)
    begin = tiny_models.cross_encoder(tmp_path / "begin")
    recipe = learning.RECIPE.model_copy(
        update={"rounds": 2, "depth": 3, "k": 2, "max_length": 48, "frozen_layers": 1, "queries": 1}
    )
    models = {}
    for ids in (True, False):
        run = learning.learned(SMALL, agents, begin, seed=1, ids=ids, folder=tmp_path / "run", recipe=recipe)
        models[ids] = asyncio.run(run)
        assert (models[ids] / "config.json").is_file()
        assert models[ids].parent.name == "round-2"
    mean = learning.blended(models[True], tmp_path / "run" / "start" / "model", tmp_path / "blended")
    _, first = training_start.load(tmp_path / "run" / "start" / "model")
    _, last = training_start.load(models[True])
    _, middle = training_start.load(mean)
    for one, other, between in zip(*(model.parameters() for model in (first, last, middle)), strict=True):
        assert np.allclose((one + other).detach() / 2, between.detach(), atol=1e-6)
    before = ordered(score(SMALL, agents, begin, conversions=tmp_path / "conversions", ids=False))
    assert {name: sorted(some) for name, some in before.items()} == {
        one.name: sorted(task.id for task in SMALL.plan.of(one, TEST)) for one in AGENTS
    }
    assert all(
        sorted(order) == [0, 1, 2][: len(order)] for some in before.values() for order in some.values()
    )
    assert {row["tau"] for row in rows(before, before) if not np.isnan(row["tau"])} == {1.0}
    orders = ordered(score(SMALL, agents, models[True], conversions=tmp_path / "conversions", ids=True))
    to = tmp_path / "rows.parquet"
    records.write(rows(orders, before), to)
    assert [row["first"] for row in parquet_rows.read(to)] == [
        order[0] for some in orders.values() for order in some.values()
    ]


def test_fusions_are_learned_and_change_the_order(tmp_path: Path) -> None:
    agents = Agents(SMALL)
    begin = tiny_models.cross_encoder(tmp_path / "begin")
    recipe = learning.FUSED.model_copy(update={"depth": 3, "max_length": 48})
    run = learning.learned(SMALL, agents, begin, seed=1, ids=True, folder=tmp_path / "run", recipe=recipe)
    found = training_start.fusions_of(asyncio.run(run))
    assert set(found.own) <= {(one.task_id, one.model_id) for one in AGENTS}
    scores = score(SMALL, agents, begin, conversions=tmp_path / "conversions", ids=False)
    alone = fused(SMALL, agents, scores, Fusions(), ids=True)
    assert alone == scores
    # One agent's lists follow BM25, and nobody else's change.
    own = Fusions(own={(TURNS.task_id, TURNS.model_id): Fusion(10.0)})
    orders = ordered(fused(SMALL, agents, scores, own, ids=True))
    assert all(order == sorted(order) for order in orders[TURNS.name].values())
    others = {name: some for name, some in orders.items() if name != TURNS.name}
    assert others == {name: some for name, some in ordered(scores).items() if name != TURNS.name}
    assert ordered(fused(SMALL, agents, scores, own, ids=False)) == ordered(scores)


def test_the_hybrid_finds_what_an_ask_finds(tmp_path: Path) -> None:
    agents = Agents(SMALL, tmp_path)
    found = agents.search("boat steel", 2, HYBRID)
    assert [one.id for one in found.passages] == ["p1", "p0"]
    assert found.scores[0] > found.scores[1]
    assert asyncio.run(agents.candidates("boat steel", retriever=HYBRID, depth=2)) == found
    with pytest.raises(ValueError, match="splade"):
        agents.search("boat steel", 2, "splade")


def test_chosen_weights_are_kept_by_first_stage_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "FUSIONS", tmp_path / "fusions.csv")
    own = Fusions(Fusion(2.0), {(SPANS.task_id, SPANS.model_id): Fusion(0.5, 0.25)})
    for first_stage, seed, fusions in (("bm25", 2, own), ("bm25", 1, Fusions()), ("bm25", 2, own)):
        records.write_fusions(first_stage, seed, fusions, AGENTS)
    rows = csv_rows.read(records.FUSIONS)
    assert [row["seed"] for row in rows] == ["1"] * 5 + ["2"] * 5
    assert [(row["weight"], row["neighbors"]) for row in rows[5:]] == [("0.5", "0.25")] + [("2", "0")] * 4
    shown = tables._chosen(rows)
    assert [one[SPANS.name] for one in shown] == ["0, 0", "0.5, 0.25"]


def test_a_way_is_chosen_by_training_questions_that_it_did_not_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "LEFT_OUT", dict.fromkeys(choosing.LEFT_OUT, 1))
    world = choosing.split(SMALL)
    tested = {task.id for task in SMALL.plan.tasks if task.split == TEST}
    for agent in AGENTS:
        (asked,), (learned,) = (world.plan.of(agent, part) for part in (TEST, TRAIN))
        assert {asked.id, learned.id} == {task.id for task in SMALL.plan.of(agent, TRAIN)}
    assert tested.isdisjoint(task.id for task in world.plan.tasks)
    agents = Agents(SMALL)
    begin = tiny_models.cross_encoder(tmp_path / "begin")
    found = choosing.worth(world, agents, begin, conversions=tmp_path / "conversions", ids=False)
    orders = ordered(score(world, agents, begin, conversions=tmp_path / "conversions", ids=False))
    for agent in AGENTS:
        (task,) = world.plan.of(agent, TEST)
        first = agents.search(task.question, choosing.DEPTH).passages[orders[agent.name][task.id][0]]
        assert found[agent.name] == agent.utility_of(
            agents.alone(agent, task.question, [first])[0], task.answers
        )


def test_an_order_is_compared_with_another_by_its_places() -> None:
    orders = {"a": {"q": [2, 0, 1]}}
    (row,) = rows(orders)
    assert (row["first"], row["tau"]) == (2, pytest.approx(-1 / 3))  # two of three pairs stand the other way
    (row,) = rows(orders, {"a": {"q": [2, 1, 0]}})
    assert row["tau"] == pytest.approx(1 / 3)


def _values(*of_agents: float) -> dict[str, np.ndarray]:
    return {agent.name: np.array([value, value]) for agent, value in zip(AGENTS, of_agents, strict=True)}


def test_differences_are_of_means_over_the_seeds_that_both_have() -> None:
    learned = {1: _values(1, 1, 1, 1, 1), 2: _values(0, 0, 0, 0, 1), 3: _values(1, 1, 1, 1, 1)}
    other = {1: _values(0, 0, 0, 0, 0), 2: _values(0, 0, 0, 0, 0)}
    *agents, mean = tables.compared("L3", learned, other)
    assert [row["difference"] for row in agents] == [0.5, 0.5, 0.5, 0.5, 1.0]
    assert (mean["seeds"], mean["queries"], mean["difference"]) == (2, 10, pytest.approx(0.6))
    # What nobody drew is the same for every seed.
    *agents, mean = tables.compared("L1", learned, {0: _values(0, 0, 0, 0, 1)})
    assert (mean["seeds"], agents[0]["difference"], agents[4]["difference"]) == (3, pytest.approx(2 / 3), 0)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(0.001, 0.1, "holds"), (-0.1, 0.009, "refuted"), (-0.01, 0.011, "open"), (0.0, 0.02, "open")],
)
def test_a_gain_is_decided_by_the_mean_of_the_agents(low: float, high: float, said: str) -> None:
    agent = {"agent": "spans", "low": 1, "high": 1}
    assert verdict([agent, {"agent": "mean", "low": low, "high": high}]) == said


def test_no_agent_pays_where_none_loses() -> None:
    fine = {"agent": "spans", "low": -0.019, "high": 0.1, "high_of_all": 0.2}
    lost = {"agent": "turns", "low": -0.2, "high": -0.1, "high_of_all": -0.05}
    unknown = {"agent": "turns", "low": -0.03, "high": 0.1, "high_of_all": 0.2}
    assert verdict_of_each([fine, fine]) == "holds"
    assert verdict_of_each([fine, lost]) == "refuted"
    assert verdict_of_each([fine, unknown]) == "open"


def test_nobody_is_tested_with_what_was_trained_on() -> None:
    try:
        world = sets.world()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    trained = [find_trained_texts(one) for one in (evenmesh_models.cross_encoder(), evenmesh_models.reader())]
    planned = {one.name: one.queries for one in read_plan(records.OUT / "plan.toml").data}
    for agent in AGENTS:
        tested = world.plan.of(agent, TEST)
        learned = {one.question for one in world.plan.of(agent, TRAIN)}
        assert len(tested) == planned[agent.task_id]
        assert len(learned) >= learning.RECIPE.queries
        assert not learned & {one.question for one in tested}
        seen = [one for one in tested if any(texts and texts.has_question(one.question) for texts in trained)]
        assert len(seen) <= 1  # of the dev questions of SQuAD one is, by words, a training question, too


def test_the_page_says_what_the_records_say(tmp_path: Path) -> None:
    tables.summarize(tmp_path)
    for name in tables.FILES:
        assert (tmp_path / f"{name}.csv").read_text() == (tables.OUT / f"{name}.csv").read_text()
    page = tables.OUT.with_suffix(".md").read_text(encoding="utf-8")
    assert placed(page, tables.tables(tmp_path)) == page
