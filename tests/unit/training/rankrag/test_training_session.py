"""Putting a run together: what is refused before the first step, and exporting."""

import json
from pathlib import Path

import pytest
import torch

from evenmesh_generator.pointer import artifact
from evenmesh_lab.files.trained_texts import find_trained_texts
from evenmesh_training.rankrag import session
from evenmesh_training.rankrag.data.examples import Kind
from evenmesh_training.rankrag.recipe import Recipe, RecipeError, Source
from evenmesh_training.rankrag.session import Options
from tests.support import tiny_models
from tests.unit.training.rankrag.towns import TOWNS, passage, question


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.llama(tmp_path_factory.mktemp("llama"))


def options(squad: Path, tmp_path: Path, **changes: object) -> Options:
    settings: dict[str, object] = {
        "model": "bundled",
        "stage": 2,
        "output": tmp_path / "out",
        "data": squad,
        "progress_bar": False,
    }
    return Options(**(settings | changes))  # type: ignore[arg-type]


def test_a_language_model_trains_and_is_exported_from_its_checkpoint(
    squad: Path, recipe: Recipe, llama: Path, tmp_path: Path
) -> None:
    long = recipe.model_copy(update={"stage2": recipe.stage(2).model_copy(update={"max_length": 900})})
    chosen = options(squad, tmp_path, model=str(llama), steps=2)
    done = session.prepare(long, chosen).run()
    assert done.complete
    assert 0 <= done.measures["gold_f1"] <= 1
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        path.name for path in (tmp_path / "out" / "model").iterdir()
    }
    assert session.export(tmp_path / "out", tmp_path / "again") == 2
    left, right = ((tmp_path / part / "model.safetensors").read_bytes() for part in ("out/model", "again"))
    assert left == right
    texts = find_trained_texts(tmp_path / "again")
    assert texts is not None
    asked = question(TOWNS[0])["question"]
    assert texts.has_question(f"  {asked.upper()}!")
    assert texts.has_passage(passage(TOWNS[0])["text"])
    assert not texts.has_question("Which town is not among these?")
    assert texts.unhashed == (llama.name,)  # it does not say what it was trained on
    assert [one.name for one in texts.trainings] == ["rankrag tiny, stage 2"]


def test_the_bundled_model_takes_a_step(squad: Path, recipe: Recipe, tmp_path: Path) -> None:
    chosen = options(squad, tmp_path, steps=1, frozen_layers=1)
    plain = recipe.model_copy(update={"stage2": recipe.stage(2).model_copy(update={"evaluate_examples": 1})})
    assert session.prepare(plain, chosen).run().complete
    model = artifact.load(tmp_path / "out" / "model")
    assert model.config.frozen_layers == 1
    before = artifact.load()
    assert not torch.equal(
        model.encoder.layers[1].output.dense.weight, before.encoder.layers[1].output.dense.weight
    )
    assert torch.equal(
        model.encoder.layers[0].output.dense.weight, before.encoder.layers[0].output.dense.weight
    )
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["start"] == "bundled"
    texts = find_trained_texts(tmp_path / "out" / "model")
    assert texts is not None
    assert texts.has_question(question(TOWNS[0])["question"])
    assert texts.has_question("To whom did the Virgin Mary allegedly appear in 1858 in Lourdes France?")
    assert len(texts.trainings) == 2


def test_wrong_input_fails_before_any_step(squad: Path, recipe: Recipe, llama: Path, tmp_path: Path) -> None:
    talk = Source(name="talk", dataset="chat", kind=Kind.SFT, ratio=1, path="chat.jsonl")
    (squad / "chat.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
    )
    talking = recipe.model_copy(update={"source": (talk,)})
    long = recipe.model_copy(update={"stage2": recipe.stage(2).model_copy(update={"max_length": 600})})
    short = recipe.model_copy(update={"stage2": recipe.stage(2).model_copy(update={"max_length": 40})})
    cases = [
        (recipe, {"data": tmp_path / "nowhere"}, "no data folder"),
        (recipe, {"stage": 1}, r"has no \[stage1\]"),
        (recipe, {"lora": True}, "leave out --lora"),
        (recipe, {"frozen_layers": 5}, "frozen_layers must be from 0 to 2"),
        (recipe, {"model": "/no/such/model"}, "cannot be loaded"),
        (talking, {}, "no conversations"),
        (long, {}, "600 is more than the 512 tokens"),
        (short, {"model": str(llama)}, "raise max_length"),
        (recipe, {"resume": True}, "nothing to resume"),
    ]
    for number, (made, changes, said) in enumerate(cases):
        output = tmp_path / f"out{number}"
        with pytest.raises(RecipeError, match=said):
            session.prepare(made, options(squad, tmp_path, output=output, **changes))
        assert not output.exists() or not any(output.iterdir())


def test_a_folder_that_is_no_run_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"settings\.json is missing"):
        session.export(tmp_path, tmp_path / "out")
