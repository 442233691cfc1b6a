"""Name, cores, memory and instructions of this machine's processor that this process may use."""

import os
import platform
import sys
from pathlib import Path
from typing import Final

_CGROUP: Final = Path("/sys/fs/cgroup")
_CPUINFO: Final = Path("/proc/cpuinfo")
_MATRIX_FLAGS: Final = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 bf16",
    "amx_bf16": "AMX bf16",
    "amx_int8": "AMX int8",
    "asimd": "NEON",
    "bf16": "bf16",
    "sve": "SVE",
}


def usable_cores() -> int:
    """Return the cores this process may use, at least 1: its affinity mask, or a container's share."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def usable_memory(available: int) -> int:
    """Return the bytes this process may still use: ``available``, or the container's smaller rest."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return available
    return min(available, max(0, limit - used))


def matrix_instructions() -> tuple[str, ...]:
    """Return the processor's known vector and matrix instructions that speed models up."""
    flags = (_cpu_fact("flags") or _cpu_fact("Features")).split()
    return tuple(label for flag, label in _MATRIX_FLAGS.items() if flag in flags)


def cpu_name() -> str:
    """Return the processor's name, or its kind where the system does not tell the name."""
    return _cpu_fact("model name") or platform.processor() or platform.machine()


def _cpu_fact(name: str) -> str:
    """Return what Linux says of the first core; empty where it says nothing."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
