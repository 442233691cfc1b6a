"""Tiny models, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny_models

KINDS = {
    "t5": tiny_models.t5,
    "bart": tiny_models.bart,
    "llama": tiny_models.llama,
    "llama-chat": lambda folder: tiny_models.llama(folder, chat=True),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder per kind of tiny model."""
    return {kind: make(tmp_path_factory.mktemp(kind)) for kind, make in KINDS.items()}
