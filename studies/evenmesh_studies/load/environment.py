"""Describe the machine, the versions, the models and the collection of a run."""

import asyncio
import datetime
import os
import platform
from collections.abc import Collection, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import psutil

from evenmesh import AsyncClient
from evenmesh.addresses import Addresses
from evenmesh.inventory import models
from evenmesh.wire.errors import MeshError
from evenmesh_lab.machine import cpu_name, matrix_instructions, usable_cores
from evenmesh_studies.load.settings import CallSettings

_PACKAGES: Final = ("evenmesh", "grpcio", "protobuf", "torch", "transformers")


def machine() -> dict[str, str]:
    """Describe this machine and the packages that decide its speed. Call it before the first step."""
    memory = psutil.virtual_memory().total / 2**30
    found = {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{usable_cores()} cores ({cpu_name()}; {', '.join(matrix_instructions()) or 'no AVX'}), "
        f"{memory:.0f} GiB",
        "load before": f"{os.getloadavg()[0]:.1f}",
        "Python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


async def served(addresses: Addresses, settings: CallSettings) -> dict[str, str]:
    """Describe the model and the collection, as far as the mesh reports them."""
    found = {}
    try:
        known = await asyncio.to_thread(models, addresses, timeout=10.0)
        chosen = next((one for one in known if one.name == settings.model), known[0] if known else None)
        if chosen is not None:
            found["model"] = f"{chosen.name} ({chosen.dtype})"
    except MeshError:
        found["model"] = "unknown"
    try:
        async with AsyncClient(addresses) as client:
            collection = await client.collection(settings.collection, timeout=10.0)
        found["collection"] = f"{collection.name}, {collection.num_passages:,} passages"
    except MeshError:
        found["collection"] = "unknown"
    return found


def asked(settings: CallSettings, varied: Collection[str] = ()) -> Mapping[str, str]:
    """Describe what every call asks for. What is ``varied`` between steps stands in their names."""
    drawn = f"{settings.samples or 'the default'} rankings"
    if "alpha" in varied:
        dial = f"by α, {drawn} where there is one"
    else:
        dial = "deterministic" if settings.alpha is None else f"α = {settings.alpha:g}, {drawn}"
    sizes = {"N": "N varied" if "N" in varied else f"N = {settings.n}"}
    sizes["k"] = "k varied" if "k" in varied else f"k = {settings.k}"
    found = {
        "operation": settings.operation,
        "passages": ", ".join(sizes.values()),
        "rankings": dial,
        "reranker": settings.reranker or "the mesh's default",
        "retriever": settings.retriever or "the mesh's default",
        "questions": "each asked once: a number is added" if settings.distinct else "repeated as they are",
    }
    if settings.operation != "ask":
        del found["rankings"]
    if settings.operation == "generate":
        del found["reranker"]
    return found
