"""A trainer without a wire, and a tiny model to begin with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from evenmesh_reranker.domain import Agent
from tests.support import tiny_encoders, tiny_models
from tests.support.online_world import World


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = tiny_models.cross_encoder(tmp_path_factory.mktemp("plain"))
    return tiny_encoders.personal(plain, tmp_path_factory.mktemp("personal"), [Agent("qa", "ann")])


@pytest.fixture
async def world(folder: Path, tmp_path: Path) -> AsyncIterator[World]:
    torch.set_num_threads(1)
    async with World.opened(tmp_path, folder) as world:
        yield world
