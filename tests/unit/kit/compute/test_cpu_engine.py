"""What computes encoders: what the settings say, as far as it is installed and the device is a CPU."""

from __future__ import annotations

import pytest

from evenmesh_kit.compute import cpu_engine
from evenmesh_kit.compute.cpu_engine import EngineError, computes


def test_it_is_openvino_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_engine, "installed_version", lambda: "2026.4.1")
    assert [computes("auto", "cpu"), computes("openvino", "cpu")] == [True, True]
    assert not computes("torch", "cpu")
    assert not computes("auto", "cuda:0")
    with pytest.raises(EngineError, match="the device is cuda:0"):
        computes("openvino", "cuda:0")


def test_it_is_pytorch_where_openvino_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_engine, "installed_version", lambda: None)
    assert not computes("auto", "cpu")
    assert not computes("torch", "cpu")
    with pytest.raises(EngineError, match="not installed"):
        computes("openvino", "cpu")


def test_it_is_pytorch_where_onednn_is_kept_from_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    assert cpu_engine.installed_version() is None
    assert not computes("auto", "cpu")
    with pytest.raises(EngineError, match="because ONEDNN_MAX_CPU_ISA is set"):
        computes("openvino", "cpu")
