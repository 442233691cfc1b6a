"""Choose the device of a setting; PyTorch is imported only where it must tell what there is."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final

_GPU_DEVICES: Final = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "kfd", "dxg")
"""Names of what drivers of GPUs put into ``/dev``: NVIDIA's, those of its boards, AMD's, and of WSL."""


class DeviceError(Exception):
    """Raised when this machine does not have a device."""


def device_name(device: str, *, require_gpu: bool = False) -> str:
    """Return the device for a setting, such as ``cpu`` or ``cuda:0``; this may take seconds.

    Args:
        device: ``auto`` (the first CUDA device, else the CPU), ``cpu``, ``cuda`` or ``cuda:<n>``.
        require_gpu: whether the CPU is refused, too where ``auto`` would take it.

    Raises:
        DeviceError: there is no such device, or no GPU where one is required.
    """
    if not require_gpu and (device == "cpu" or (device == "auto" and surely_no_gpu())):
        return "cpu"
    from evenmesh_kit.compute.placement import choose_device

    return str(choose_device(device, require_gpu=require_gpu))


def surely_no_gpu() -> bool:
    """Return whether PyTorch cannot have a GPU here, without importing it; False where only it can tell."""
    try:
        if importlib.metadata.version("torch").endswith("+cpu"):
            return True
    except importlib.metadata.PackageNotFoundError:
        return True
    return not any(any(Path("/dev").glob(name)) for name in _GPU_DEVICES)
