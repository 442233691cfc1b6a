"""What tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.triton_server import TritonServer

# How long an example takes says something about the machine, nothing about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton server of this session: ``t5``, ``bart``, ``llama``, ``llama-chat`` and ``ragmesh-pointer``."""
    from tests import tiny_models  # torch, which most tests do without
    from tests.triton_server import TritonServer, skip_where_impossible

    skip_where_impossible()
    models = tmp_path_factory.mktemp("triton-models")
    with TritonServer(
        tmp_path_factory.mktemp("triton"),
        {
            "t5": tiny_models.t5(models / "t5"),
            "bart": tiny_models.bart(models / "bart"),
            "llama": tiny_models.llama(models / "llama"),
            "llama-chat": tiny_models.llama(models / "llama-chat", chat=True),
        },
        bundled=True,
        settings={"RAGMESH_TRITON_EMBEDDERS": "minilm="},
    ) as server:
        yield server
