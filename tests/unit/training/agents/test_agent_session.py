"""Training an agent: refused at once with all that is wrong, resumed to the last bit, described for others."""

import csv
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from evenmesh_generator.pointer import artifact
from evenmesh_training.agents import session
from evenmesh_training.agents.session import Options
from evenmesh_training.rankrag.recipe import RecipeError
from tests.support import tiny_models


def options(towns: Path, tmp_path: Path, **changes: Any) -> Options:
    settings: dict[str, Any] = {
        "tasks": ("mayor", "day"),
        "model": str(tmp_path / "t5"),
        "augmentation": "fid",
        "output": tmp_path / "agent",
        "root": towns.parent,
        "data": str(towns),
        "k": 2,
        "batch_size": 4,
        "micro_batch": 2,
        "bf16": False,
        "held_out": 2,
        "progress_bar": False,
    }
    return Options(**(settings | changes))


@pytest.fixture
def t5(tmp_path: Path) -> Path:
    return tiny_models.t5(tmp_path / "t5")


def log(output: Path) -> list[dict[str, str]]:
    with (output / "log.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_a_run_has_the_papers_settings_and_leaves_an_entry_beside_its_model(
    towns: Path, t5: Path, tmp_path: Path
) -> None:
    run = session.prepare(options(towns, tmp_path, epochs=2, collection="towns"))
    assert (run.examples, run.held_out, run.split) == (9, 2, "dev")
    # nine inputs twice, in batches of four
    assert run.stage.steps == -(-9 * 2 // 4)
    assert (run.stage.learning_rate, run.stage.weight_decay, run.stage.warm_up) == (5e-5, 1e-2, 1)
    assert Options(tasks=("qa",), output=tmp_path, root=tmp_path).batch_size == 64
    done = run.run()
    assert done.complete
    assert 0 <= done.measures["five_em"] <= 1
    assert (tmp_path / "agent" / "model" / "model.safetensors").is_file()
    entries = tomllib.loads((tmp_path / "agent" / session.ENTRIES).read_text())
    assert entries["data"] == {"tasks": str(towns), "collection": "towns"}
    assert entries["agent"] == [
        {
            "task_id": task,
            "model_id": "agent",
            "model": "agent",
            "augmentation": "fid",
            "template": "",
            "utility": utility,
            "dataset": "towns",
            "passages": 2,
        }
        for task, utility in (("day", "accuracy"), ("mayor", "exact-match"))
    ]


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(towns: Path, t5: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert session.prepare(options(towns, tmp_path, output=whole, steps=4)).run().complete
    broken = session.prepare(options(towns, tmp_path, output=parts, steps=4))
    take = broken.trainer._step

    def stopped(step: int) -> dict[str, float]:
        broken.trainer._stopped = step == 1
        return take(step)

    broken.trainer._step = stopped  # type: ignore[method-assign]
    assert not broken.run().complete
    assert not (parts / session.ENTRIES).exists()
    assert session.prepare(options(towns, tmp_path, output=parts, steps=4, resume=True)).run().complete
    assert log(parts) == log(whole)
    one, other = ((out / "model" / "model.safetensors").read_bytes() for out in (whole, parts))
    assert one == other
    with pytest.raises(RecipeError, match="belongs to another run"):
        session.prepare(options(towns, tmp_path, output=parts, steps=4, resume=True, k=1))


def test_everything_that_is_wrong_is_reported_at_once(towns: Path, tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "old").touch()
    with pytest.raises(RecipeError) as caught:
        session.prepare(
            options(
                towns,
                tmp_path,
                tasks=("mayr", "day", "nothing"),
                augmentation="prompt",
                model="bundled",
                template="ra-x",
                learning_rate=2.0,
                epochs=0,
                k=0,
                utility="bleu",
            )
        )
    said = str(caught.value).splitlines()
    for part in (
        "--augmentation is 'prompt'",
        "--utility is 'bleu'",
        "--k is 0",
        "--epochs is 0",
        "--learning-rate is 2",
        "--template ra-x",
        "agent is not empty",
        "--task mayr",
        "--task nothing",
    ):
        assert sum(part in line for line in said) == 1, part


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "/no/such/model"}, "cannot be loaded"),
        ({"frozen_layers": 2}, "--frozen-layers is for pointer models alone"),
        ({"model": "bundled", "frozen_layers": 9}, "--frozen-layers is 9; allowed: from 0 to 6"),
        ({"tasks": ()}, "--task is missing"),
        ({"data": "nowhere"}, "neither"),
        ({"epochs": float("nan")}, "--epochs is nan"),
        ({"epochs": float("inf")}, "--epochs is inf"),
    ],
)
def test_wrong_input_fails_before_any_step(
    towns: Path, t5: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        session.prepare(options(towns, tmp_path, **changes))


def test_the_bundled_model_takes_a_step_and_keeps_its_frozen_layers(towns: Path, tmp_path: Path) -> None:
    run = session.prepare(
        options(towns, tmp_path, model="bundled", augmentation="in-prompt", steps=1, frozen_layers=4)
    )
    assert run.run().complete
    before, after = (
        dict(one.encoder.layers.named_parameters())
        for one in (artifact.load(), artifact.load(tmp_path / "agent" / "model"))
    )
    changed = {name.split(".")[0] for name, value in before.items() if not torch.equal(value, after[name])}
    assert changed == {"4", "5"}
