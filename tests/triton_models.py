"""Models of a Triton server, as the generator's process has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from meshkit.readiness import Readiness
from services.generator.backends.triton.model import TritonModel
from services.generator.hosts.triton import TritonHost
from services.generator.settings import BUNDLED, GeneratorSettings, ModelSource


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
        **fields,
    }
    return GeneratorSettings(**values)


@asynccontextmanager
async def opened(
    target: str, *names: str, readiness: Readiness | None = None, **fields: Any
) -> AsyncIterator[list[TritonModel]]:
    """Models of the server, looked after until the block ends, in the order of the settings' names."""
    host = TritonHost(settings(target, names, **fields), readiness or Readiness())
    hosted = await host.start()
    try:
        yield [one.model for one in hosted if isinstance(one.model, TritonModel)]
    finally:
        await host.stop()
