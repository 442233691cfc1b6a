"""What this machine has for a mesh: cores and memory, as far as this process may use them."""

import os
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
    """Cores this process may use, 1 or more: its affinity mask, or a container's share if that is less."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def usable_memory(available: int) -> int:
    """Bytes this process may still use: ``available``, or what its container has left if that is less."""
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return available
    return min(available, max(0, limit - used))


def matrix_instructions() -> tuple[str, ...]:
    """The processor's vector and matrix instructions that models profit from, as far as they are known."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    flags = next(
        (set(line.partition(":")[2].split()) for line in lines if line.startswith(("flags", "Features"))),
        set(),
    )
    return tuple(label for flag, label in _MATRIX_FLAGS.items() if flag in flags)
