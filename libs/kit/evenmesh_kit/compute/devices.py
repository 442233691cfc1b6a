"""Choose the device of a setting; PyTorch is imported only where it must tell what there is."""

from __future__ import annotations

import importlib.metadata
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evenmesh_kit.compute.model_files import one_line

if TYPE_CHECKING:
    import torch

_log = logging.getLogger("evenmesh.compute")

DRIVER: Final = Path("/dev/nvidiactl")
"""Is there where NVIDIA's driver is loaded."""

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
    return str(choose_device(device, require_gpu=require_gpu))


def surely_no_gpu() -> bool:
    """Return whether PyTorch cannot have a GPU here, without importing it; False where only it can tell."""
    try:
        if importlib.metadata.version("torch").endswith("+cpu"):
            return True
    except importlib.metadata.PackageNotFoundError:
        return True
    return not any(any(Path("/dev").glob(name)) for name in _GPU_DEVICES)


def choose_device(device: str, *, require_gpu: bool = False) -> torch.device:
    """Return the device for a setting, ``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``.

    Raises:
        DeviceError: there is no such device, or no GPU where one is required.
    """
    import torch

    available = torch.cuda.is_available()
    name = ("cuda:0" if available else "cpu") if device == "auto" else device
    if require_gpu and not name.startswith("cuda"):
        why = why_no_cuda() if device == "auto" else f"the device is set to {device!r}: set auto or cuda"
        raise DeviceError(f"a GPU is required, and models would run on the CPU: {why}")
    if device == "auto" and not available and DRIVER.exists():
        _log.warning("models run on the CPU although there is an NVIDIA driver: %s", why_no_cuda())
    try:
        place = torch.device("cuda:0" if name == "cuda" else name)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError):
        why = f": {why_no_cuda()}" if name.startswith("cuda") and not available else ""
        raise DeviceError(f"no device {name!r} on this machine{why}") from None
    return place


def why_no_cuda() -> str:
    """Return why PyTorch cannot use a GPU, and what to do."""
    import torch

    if torch.version.cuda is None:
        return "this PyTorch is built without CUDA; install the one of PyPI (images: VARIANT=cuda)"
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return (
            f"CUDA cannot start ({one_line(error)}); check nvidia-smi, that the driver suits CUDA "
            f"{torch.version.cuda}, and that the container is given a GPU"
        )
    return "PyTorch sees no GPU; check CUDA_VISIBLE_DEVICES, and that the container is given one"
