"""Choose what computes encoders on processors: OpenVINO where it is installed, or PyTorch."""

from __future__ import annotations

import importlib.metadata
from typing import Literal

CpuEngine = Literal["auto", "torch", "openvino"]
"""``auto`` is OpenVINO where it is installed and can compute the model."""


class EngineError(Exception):
    """Raised where OpenVINO cannot compute; one line that says why."""


def installed_version() -> str | None:
    """Return the version of the installed OpenVINO; None without one."""
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
        raise EngineError("OpenVINO is not installed: pip install openvino")
    return on_cpu and installed
