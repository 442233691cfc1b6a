"""Models of a Triton server, as the generator's process has them."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from evenmesh_generator.hosts.triton import TritonHost
from evenmesh_generator.prompts import TemplateLibrary
from evenmesh_generator.settings import BUNDLED, GeneratorSettings, ModelSource
from evenmesh_generator.triton.repository import TritonModelEntry, write_model
from evenmesh_kit.rpc.readiness import Readiness
from tests.support import tiny_models

ENDLESS_QUESTION = tiny_models.SENTENCES[5]
"""What :func:`endless` answers, greedily and with the passages after the first sentence, without an end."""


def endless(folder: Path) -> Path:
    """The tiny T5 with an end token that it does not write."""
    tiny_models.t5(folder)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 0}))
    return folder


def write_odd_models(repository: Path, *names: str) -> None:
    """Write models that a question makes do what no model should; they import neither PyTorch nor transformers."""
    for name in names:
        folder = write_model(TritonModelEntry(name, "encoder_decoder"), repository)
        shutil.copyfile(Path(__file__).with_name("odd_model.py"), folder / "1" / "model.py")


def write_bare_encoder(repository: Path, name: str) -> None:
    """Write an encoder for tests that ask how a server is, not what the vectors are; it imports no PyTorch."""
    folder = write_model(TritonModelEntry(name, "embed"), repository)
    shutil.copyfile(Path(__file__).with_name("bare_encoder.py"), folder / "1" / "model.py")


def settings(target: str, names: Sequence[str], **fields: Any) -> GeneratorSettings:
    """Settings of a generator in front of the server at ``target``, with these models, quick to notice."""
    values = {
        "port": 0,
        "engine": "triton",
        "triton_target": target,
        "bundled": BUNDLED in names,
        "models": tuple(ModelSource(name=name) for name in names if name != BUNDLED),
        "triton_probe_interval_s": 0.5,
        "delta_interval_ms": 0,
        "max_call_tokens": 280_000,  # as k8s/components/triton sets it
        **fields,
    }
    return GeneratorSettings(**values)


@asynccontextmanager
async def opened(
    target: str, *names: str, readiness: Readiness | None = None, **fields: Any
) -> AsyncIterator[list[Any]]:
    """Models of the server, looked after until the block ends, in the order of the settings' names."""
    host = TritonHost(settings(target, names, **fields), TemplateLibrary.bundled(), readiness or Readiness())
    hosted = await host.start()
    try:
        yield list(hosted)
    finally:
        await host.stop()
