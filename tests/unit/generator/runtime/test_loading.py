"""Which models are loaded, which are refused and with what words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from evenmesh_generator.runtime import loading
from evenmesh_kit.compute import model_files
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.placement import Placement


@pytest.fixture
def copy(folders: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders["t5"], tmp_path / "model"))


def test_no_weights_but_safetensors(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match=r"has no \*.safetensors weights; other formats are not loaded"):
        loading.load(copy, Placement(torch.device("cpu"), torch.float32))


def test_no_code_of_a_models_own(copy: Path) -> None:
    """A configuration that names code of its own is refused, and the code is not run."""
    (copy / "evil.py").write_text("raise SystemExit('ran')\n")
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.EvilConfig"}}
    (copy / "config.json").write_text(json.dumps(config))
    assert model_files.model_type(copy) == "evil"
    with pytest.raises(ModelError, match="cannot be loaded"):
        loading.load(copy, Placement(torch.device("cpu"), torch.float32))


@pytest.mark.parametrize("config", ["", "{", "{}", "[]"])
def test_a_folder_without_a_usable_configuration(copy: Path, config: str) -> None:
    (copy / "config.json").write_text(config)
    with pytest.raises(ModelError, match=r"has no usable config.json") as caught:
        model_files.model_type(copy)
    assert "\n" not in str(caught.value)


def test_damaged_weights(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        loading.load(copy, Placement(torch.device("cpu"), torch.float32))
    assert "\n" not in str(caught.value)


def test_weights_take_the_number_type(copy: Path) -> None:
    model, tokenizer = loading.load(copy, Placement(torch.device("cpu"), torch.bfloat16))
    assert model.dtype is torch.bfloat16
    assert not model.training
    assert tokenizer.eos_token == "</s>"  # noqa: S105 - a token, not a password


def test_weights_of_a_gpu_are_read_straight_to_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers gets the device, so that no copy of all weights is made on the host; it is real but for
    the device, whose place the CPU takes.
    """
    real: Any = AutoModelForSeq2SeqLM.from_pretrained
    given: list[Any] = []

    def read(*args: Any, device_map: Any = None, **kwargs: Any) -> Any:
        given.append(device_map)
        return real(*args, device_map=device_map and {"": torch.device("cpu")}, **kwargs)

    monkeypatch.setattr(AutoModelForSeq2SeqLM, "from_pretrained", read)
    monkeypatch.setattr(PreTrainedModel, "to", lambda model, _: model)
    gpu = torch.device("cuda", 0)
    straight, _ = loading.load(copy, Placement(gpu, torch.float32))
    usual, _ = loading.load(copy, Placement(torch.device("cpu"), torch.float32))
    assert given == [{"": gpu}, None]
    assert not any(hasattr(module, "_hf_hook") for module in straight.modules()), (
        "hooks would slow each layer"
    )
    for (name, one), (_, other) in zip(straight.named_parameters(), usual.named_parameters(), strict=True):
        assert torch.equal(one, other), name
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        found = [model(input_ids=ids, decoder_input_ids=ids).logits for model in (straight, usual)]
    assert torch.equal(found[0], found[1])


def test_without_accelerate_weights_pass_through_the_host_and_that_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loading, "is_accelerate_available", lambda: False)
    assert loading._straight_to(torch.device("cuda", 0)) == {}
    assert "pip install './services/generator[gpu]'" in caplog.text
    assert loading._straight_to(torch.device("cpu")) == {}
