"""Let converted encoders pad rows and compute some together on any processor, as they do with AMX."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from evenmesh_kit.compute.openvino_runtime import CompiledLayers


def pad(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[int]:
    """Pad the rows of encoders that a module opens.

    Returns:
        A list that gets the number of rows of each computation.
    """
    computed: list[int] = []
    states = CompiledLayers.states

    def noted(self: CompiledLayers, words: Any, rows: Any, *others: Any) -> Any:
        computed.append(len(rows))
        return states(self, words, rows, *others)

    monkeypatch.setattr(module, "pads_rows", lambda **_: True)
    monkeypatch.setattr(CompiledLayers, "try_together", lambda self, *_: setattr(self, "_together", 4))
    monkeypatch.setattr(CompiledLayers, "states", noted)
    return computed
