"""Reading tasks and passages, and what an agent learns from."""

import json
from pathlib import Path
from typing import Any

import pytest

from evenmesh_training.agents import tasks
from evenmesh_training.agents.training_examples import PassageIndex, ShuffledExamples
from evenmesh_training.rankrag.recipe import RecipeError


def read(file: Path) -> tasks.TaskData:
    return tasks.read(*tasks.locate(str(file), None, file.parent))


def test_tasks_are_called_by_agent_or_kind(towns: Path) -> None:
    found = read(towns).tasks
    assert len(found) == 12
    assert tasks.chosen(found, ["mayor"]) == [one for one in found if one.agent == "mayor"]
    assert tasks.chosen(found, ["slot_filling"]) == tasks.chosen(found, ["day"])
    assert tasks.chosen(found, ["day", "qa"]) == found
    with pytest.raises(RecipeError, match="--task mayr: no such task; there are day, mayor, and the kinds"):
        tasks.chosen(found, ["mayor", "mayr"])


def test_a_data_set_by_name(towns: Path) -> None:
    root = towns.parent.parent
    assert tasks.locate("towns", None, root) == (towns, towns.parent / "passages.jsonl")
    with pytest.raises(RecipeError, match=r"neither .*elsewhere/tasks\.jsonl nor tasks\.jsonl\.gz"):
        tasks.locate("elsewhere", None, root)
    with pytest.raises(RecipeError, match="there is no such file"):
        tasks.locate(str(root / "nothing.jsonl"), None, root)
    with pytest.raises(RecipeError, match="--passages"):
        tasks.locate("towns", root / "nothing.jsonl", root)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answers": []}, "record 13: answers must be a list of one text or more"),
        ({"answers": "Monday"}, "record 13: answers"),
        ({"input": " "}, "record 13: input must be a text that is not empty"),
        ({"split": None}, "record 13: split"),
        ({"id": "q-Aarau"}, "has the id 'q-Aarau' twice"),
    ],
)
def test_what_is_malformed_is_named(towns: Path, changes: dict[str, Any], message: str) -> None:
    first = towns.read_text().splitlines()[0]
    with towns.open("a") as stream:
        stream.write(json.dumps(json.loads(first) | {"id": "new"} | changes) + "\n")
    with pytest.raises(RecipeError, match=message):
        read(towns)


def test_passages_come_from_bm25_best_first(towns: Path) -> None:
    data = read(towns)
    library = PassageIndex(data.passages)
    asked = tasks.chosen(data.tasks, ["mayor"])
    found = library.retrieve(asked, 3)
    assert found.nothing_found == 0
    for task, example in zip(asked, found.examples, strict=True):
        town = task.id.removeprefix("q-")
        assert example.shown[0].passage.id == f"p-{town}"
        assert len(example.shown) == 3
        assert (example.question, example.answer) == (task.input, f"{town}son Keller")
    nowhere = tasks.Task("x", "mayor", "qa", "zzz?", ("a",), "train", "towns")
    assert library.retrieve([nowhere], 3).nothing_found == 1


def test_every_epoch_has_every_example_once_in_an_order_of_its_own(towns: Path) -> None:
    data = read(towns)
    examples = PassageIndex(data.passages).retrieve(data.tasks, 1).examples
    shuffled = ShuffledExamples(examples, seed=1)
    epochs = [[shuffled[epoch * 12 + at].id for at in range(12)] for epoch in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(one.id for one in examples)
    assert epochs[0] != epochs[1]
    again = ShuffledExamples(examples, seed=1)
    assert again[17].id == epochs[1][5]
    assert [again[at].id for at in range(12)] == epochs[0]
