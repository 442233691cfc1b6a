"""Choose the device and the number type of a model.

Needs ``torch``; only services that load models import this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

import torch
from torch import Tensor

from evenmesh_kit.compute.devices import choose_device

LOADING: Final = Lock()
"""Held while transformers loads a model: it changes its own classes and PyTorch's number type meanwhile.

Two threads that load at once leave them changed: tied weights of later models stay empty.
"""


@dataclass(frozen=True)
class Placement:
    """The device and the number type that a model computes with."""

    device: torch.device
    dtype: torch.dtype

    @staticmethod
    def choose(device: str, dtype: str, *, require_gpu: bool = False) -> Placement:
        """Return the device and the number type for settings.

        Args:
            device: ``auto`` (the first CUDA device, else the CPU), ``cpu``, ``cuda`` or ``cuda:<n>``.
            dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``; auto is bfloat16 on GPUs that have it
                and on CPUs with bfloat16 dot products (AMX or AVX-512 BF16: at least twice the matrix speed
                of float32), float32 elsewhere.
            require_gpu: whether the CPU is refused, too where ``auto`` would take it.

        Raises:
            DeviceError: there is no such device, or no GPU where one is required.
        """
        place = choose_device(device, require_gpu=require_gpu)
        if dtype != "auto":
            return Placement(place, getattr(torch, dtype))
        return Placement(place, torch.bfloat16 if multiplies_bfloat16(place) else torch.float32)

    @property
    def dtype_name(self) -> str:
        """Return the name of the number type, such as ``bfloat16``."""
        return str(self.dtype).removeprefix("torch.")


def upload(values: Sequence[Any], device: torch.device) -> Tensor:
    """Return numbers, or rows of them, as a tensor on a device; the host does not wait for a GPU.

    ``torch.tensor(values, device=...)`` waits until the GPU has done all that it was given before.
    """
    made = torch.tensor(values)
    if device.type != "cuda":
        return made.to(device)
    return made.pin_memory().to(device, non_blocking=True)


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether a device has instructions for it; without them, float32 is many times as fast."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
