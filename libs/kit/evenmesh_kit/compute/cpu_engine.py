"""Choose what computes encoders on processors: OpenVINO where it is installed, or PyTorch."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Final, Literal

CpuEngine = Literal["auto", "torch", "openvino"]
"""``auto`` is OpenVINO where it is installed and can compute the model."""


_CAPS: Final = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Variables that keep oneDNN from instructions of the processor. OpenVINO obeys them in some of its kernels
only, and then fails or ends the process (2026.4)."""


class EngineError(Exception):
    """Raised where OpenVINO cannot compute; one line that says why."""


def installed_version() -> str | None:
    """Return the version of the installed OpenVINO; None without one, or where it cannot be used."""
    if _cap() is not None:
        return None
    try:
        return importlib.metadata.version("openvino")
    except importlib.metadata.PackageNotFoundError:
        return None


def computes(engine: CpuEngine, device: str) -> bool:
    """Return whether OpenVINO is to compute the encoders of a device, such as ``cpu`` or ``cuda:0``.

    Raises:
        EngineError: ``engine`` asks for it, and it is not installed or the device is no CPU.
    """
    if engine == "torch":
        return False
    on_cpu, installed = device == "cpu", installed_version() is not None
    if engine == "openvino" and not on_cpu:
        raise EngineError(f"OpenVINO computes on the CPU, and the device is {device}")
    if engine == "openvino" and not installed:
        cap = _cap()
        if cap is not None:
            raise EngineError(f"OpenVINO is not installed, or cannot be used because {cap} is set")
        raise EngineError("OpenVINO is not installed: pip install openvino")
    return on_cpu and installed


def _cap() -> str | None:
    """Return which of :data:`_CAPS` is set."""
    return next((name for name in _CAPS if os.environ.get(name)), None)
