"""Agents' files and recipes: what is read, and that all that is wrong is said at once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from evenmesh_core.text_metrics import token_f1
from evenmesh_training.ium import plan, recipe
from evenmesh_training.ium.plan import PlanError

AGENTS = """
[data]
tasks = "tasks.jsonl.gz"
collection = "wiki"
[[agent]]
task_id = "qa"
model_id = "a"
model = "reader"
augmentation = "fid"
[[agent]]
task_id = "other"
model_id = "b"
model = "reader"
tasks = ["qa"]
utility = "token-f1"
dataset = "d"
passages = 3
"""


def _row(number: int, split: str = "train", agent: str = "qa") -> dict[str, object]:
    return {"id": f"{agent}{number}", "agent": agent, "input": "who?", "answers": ["Ann"], "split": split}


def _written(folder: Path, rows: list[object], agents: str = AGENTS) -> Path:
    with gzip.open(folder / "tasks.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(f"{json.dumps(one)}\n" for one in rows)
    (folder / "agents.toml").write_text(agents, encoding="utf-8")
    return folder / "agents.toml"


def test_agents_and_their_tasks_are_read(tmp_path: Path) -> None:
    rows = [_row(1), _row(2, "test"), _row(3), _row(4, agent="unasked")]
    found = plan.load(_written(tmp_path, list(rows)))
    first, second = found.agents
    assert found.collection == "wiki"
    assert [one.id for one in found.tasks] == ["qa1", "qa2", "qa3"]
    assert [one.id for one in found.of(second, "train")] == ["qa1", "qa3"]
    assert [one.id for one in found.of(second, "train", 1)] == ["qa1"]
    assert found.without("test") == []
    assert found.without("dev") == [
        "qa/a has no task of the split dev",
        "other/b has no task of the split dev",
    ]
    assert (first.group, second.group) == ("qa", "d")
    assert first.writer != second.writer
    assert first.utility_of("the Ann", ["Ann"]) == 1.0
    labels = first.model_copy(update={"utility": "accuracy"})
    assert labels.utility_of("supports ", ["SUPPORTS"]) == 1.0  # by a model that writes no capitals
    assert labels.utility_of("supports", ["REFUTES"]) == 0.0
    assert second.utility_of("Ann Lee", ["Ann"]) == token_f1("Ann Lee", ["Ann"]) == 2 * 1 / (2 + 1)


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    twice = AGENTS + '[[agent]]\ntask_id = "qa"\nmodel_id = "a"\nmodel = "x"\n'
    rows = [_row(1), _row(1), {**_row(2), "answers": []}, {"id": "x"}, "text"]
    with pytest.raises(PlanError) as refused:
        plan.load(_written(tmp_path, list(rows), twice))
    said = refused.value.problems
    assert len(said) == 5
    assert "qa/a is there twice" in said[0]
    assert ":2: the id 'qa1' is there twice" in said[1]
    assert ":3: 'qa2' has no input or no answers" in said[2]
    assert ":4:" in said[3]
    assert ":5:" in said[4]


def test_an_agent_without_training_tasks_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"qa/a is asked qa: .* nothing of it to train on"):
        plan.load(_written(tmp_path, [_row(1, "test")]))


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ("[data", "is not TOML"),
        (AGENTS.replace('"fid"', '"fit"'), r"agent\.0\.augmentation"),
        (AGENTS.replace('collection = "wiki"', ""), r"data\.collection"),
        (AGENTS.replace("passages = 3", "passages = 0"), r"agent\.1\.passages"),
    ],
    ids=["toml", "augmentation", "collection", "passages"],
)
def test_a_malformed_file_is_refused_by_field(tmp_path: Path, agents: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        plan.load(_written(tmp_path, [_row(1)], agents))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"missing\.toml"):
        plan.load(tmp_path / "missing.toml")


def test_the_paper_is_a_preset() -> None:
    paper = recipe.load("paper")
    assert (paper.rounds, paper.depth, paper.k) == (3, 100, 32)
    options = paper.options(seed=5)
    assert (options.epochs, options.batch_size, options.learning_rate) == (2, 512, 1e-5)
    assert (options.warm_up, options.max_length, options.unknown_share) == (0.05, 256, 0.1)
    assert options.seed == 5
    assert "laptop" in recipe.presets()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "x"\nrounds = 0\nk = 0', "rounds.*; .*k:"),
        ("name", "not TOML"),
        ('name = "x"\nstep = 1', "step"),
        ('name = "x"\nlearns = "fusion"\nrounds = 2', "rounds must be 1"),
    ],
    ids=["ranges", "toml", "unknown", "rounds of fusion"],
)
def test_a_malformed_recipe_is_refused_by_field(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.toml").write_text(text, encoding="utf-8")
    with pytest.raises(PlanError, match=said):
        recipe.load(str(tmp_path / "r.toml"))


def test_no_such_recipe_tells_the_presets() -> None:
    with pytest.raises(PlanError, match="laptop, paper"):
        recipe.load("none-of-these")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "needs a model or a function, and not both"),
        ('model = "reader"\nfunction = "mine:answer"', "needs a model or a function, and not both"),
        ('function = "mine:answer"\ntemplate = "short"', "a function reads passages itself"),
        ('function = "mine.answer"', "agent.0.function: String should match pattern"),
    ],
)
def test_an_agent_is_a_model_or_a_function(tmp_path: Path, lines: str, said: str) -> None:
    agents = f'[data]\ntasks = "tasks.jsonl.gz"\ncollection = "c"\n[[agent]]\ntask_id = "qa"\nmodel_id = "a"\n{lines}\n'
    with pytest.raises(PlanError, match=said):
        plan.load(_written(tmp_path, [_row(1)], agents))


def test_a_function_is_the_writer_of_its_answers(tmp_path: Path) -> None:
    agents = AGENTS.replace('model = "reader"\naugmentation = "fid"', 'function = "mine.agents:answer"')
    first, second = plan.load(_written(tmp_path, [_row(1)], agents)).agents
    assert (first.function, first.model) == ("mine.agents:answer", "")
    assert first.writer != second.writer


def test_an_item_that_cannot_be_looked_for_is_named_before_anything_runs(tmp_path: Path) -> None:
    agents = AGENTS.replace('"token-f1"', '"answer-recall"')
    rows = [_row(1), _row(2) | {"answers": ["Ann", "?"]}]
    with pytest.raises(PlanError, match="'qa2' has an answer without a letter or digit") as found:
        plan.load(_written(tmp_path, list(rows), agents))
    assert len(found.value.problems) == 1
    assert plan.load(_written(tmp_path, list(rows))).tasks  # other utilities take it
