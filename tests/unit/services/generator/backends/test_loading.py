"""Which models are loaded, which are refused and with what words, and how versions are told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from services.generator.backends import loading
from services.generator.backends.loading import DeviceError, DownloadsOffError, ModelError, Placement


@pytest.fixture
def copy(folders: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(folders["t5"], tmp_path / "model"))


def test_a_folder_is_itself(copy: Path) -> None:
    assert loading.locate(str(copy), allow_download=False) == copy


def test_what_is_no_folder_and_no_repository(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no folder"):
        loading.locate(str(tmp_path / "none"), allow_download=False)


def test_downloads_are_off_unless_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DownloadsOffError, match="nobody/nothing is neither a folder nor downloaded before"):
        loading.locate("nobody/nothing", allow_download=False)


def test_a_snapshot_of_the_hub_is_found_and_its_version_is_the_revision(copy: Path, tmp_path: Path) -> None:
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--some--model" / "snapshots" / revision
    shutil.copytree(copy, snapshot)
    assert loading.version(snapshot) == revision


def test_versions_change_with_weights_configuration_and_tokenizer(copy: Path) -> None:
    versions = {loading.version(copy)}
    assert loading.version(copy) in versions
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        path = copy / name
        data = bytearray(path.read_bytes())
        data[-2] ^= 1
        path.write_bytes(bytes(data))
        versions.add(loading.version(copy))
    assert len(versions) == 4
    assert all(len(version) == 16 for version in versions)


def test_large_weights_are_hashed_in_parts(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the limit, size, header and spaced blocks count; the test's file is small, so the limit is too."""
    monkeypatch.setattr(loading, "_HASHED_BYTES", 1000)
    before = loading.version(copy)
    path = copy / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[8] ^= 1  # in the header
    path.write_bytes(bytes(data))
    assert loading.version(copy) != before


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
    assert loading.model_type(copy) == "evil"
    with pytest.raises(ModelError, match="cannot be loaded"):
        loading.load(copy, Placement(torch.device("cpu"), torch.float32))


@pytest.mark.parametrize("config", ["", "{", "{}", "[]"])
def test_a_folder_without_a_usable_configuration(copy: Path, config: str) -> None:
    (copy / "config.json").write_text(config)
    with pytest.raises(ModelError, match=r"has no usable config.json") as caught:
        loading.model_type(copy)
    assert "\n" not in str(caught.value)


def test_damaged_weights(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        loading.load(copy, Placement(torch.device("cpu"), torch.float32))
    assert "\n" not in str(caught.value)


def test_placement_on_the_cpu() -> None:
    assert Placement.choose("cpu", "float32") == Placement(torch.device("cpu"), torch.float32)
    chosen = Placement.choose("cpu", "auto").dtype
    capabilities = torch.cpu.get_capabilities()
    fast = bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    assert chosen is (torch.bfloat16 if fast else torch.float32)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_no_such_device(device: str) -> None:
    with pytest.raises(DeviceError, match=f"no device '{device}' on this machine"):
        Placement.choose(device, "auto")


def test_weights_take_the_number_type(copy: Path) -> None:
    model, tokenizer = loading.load(copy, Placement(torch.device("cpu"), torch.bfloat16))
    assert model.dtype is torch.bfloat16
    assert not model.training
    assert tokenizer.eos_token == "</s>"  # noqa: S105 - a token, not a password
