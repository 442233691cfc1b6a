"""Let converted encoders compute padded rows together on any processor, whatever bits that changes."""

from __future__ import annotations

from typing import Any

import pytest

from evenmesh_kit.compute.openvino_runtime import CompiledLayers


def computed_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compute up to four rows of the encoders that are opened from now on together.

    Returns:
        A list that gets the number of rows of each computation.
    """
    computed: list[int] = []
    states = CompiledLayers.states

    def noted(self: CompiledLayers, words: Any, rows: Any, *others: Any) -> Any:
        computed.append(len(rows))
        return states(self, words, rows, *others)

    monkeypatch.setattr(CompiledLayers, "try_together", lambda self, *_: setattr(self, "_together", 4))
    monkeypatch.setattr(CompiledLayers, "states", noted)
    return computed
