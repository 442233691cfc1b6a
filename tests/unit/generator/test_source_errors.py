"""Models that are not here are named before PyTorch is imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evenmesh_generator.__main__ import GeneratorService
from evenmesh_generator.settings import GeneratorSettings, ModelSource
from evenmesh_kit.settings import SettingsError

HOST = "evenmesh_generator.hosts.in_process"


@pytest.fixture(autouse=True)
def _not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, HOST, None)  # to import it is a ModuleNotFoundError


def _said(path: str, home: Path, *, allow_download: bool = False) -> str:
    """What a generator says that cannot import PyTorch's host."""
    models = (ModelSource(name="a", path=path),) if path else ()
    settings = GeneratorSettings(models=models, home=home, port=0, allow_download=allow_download)
    with pytest.raises(SettingsError) as refused:
        GeneratorService(settings)
    return str(refused.value)


def test_what_is_no_model_is_named_first(tmp_path: Path) -> None:
    where = "EVENMESH_GENERATOR_MODELS: model 'a': "
    assert _said(str(tmp_path / "none"), tmp_path).startswith(f"{where}there is no folder")
    fetched = _said("nobody/nothing", tmp_path)
    assert fetched.startswith(where)
    assert fetched.endswith("; EVENMESH_GENERATOR_ALLOW_DOWNLOAD=true fetches it")
    assert f"{tmp_path} has no usable config.json" in _said(str(tmp_path), tmp_path)
    assert "has no usable config.json" in _said(str(tmp_path), tmp_path, allow_download=True)


def test_what_may_be_there_is_left_to_the_host(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5"}')
    for said in (
        _said("", tmp_path),
        _said(str(tmp_path), tmp_path),
        _said("nobody/nothing", tmp_path, allow_download=True),
    ):
        assert said.startswith("EVENMESH_GENERATOR_ENGINE=in-process needs ")
