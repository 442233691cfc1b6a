"""Choose the device and the number type of a model.

Needs ``torch``; only services that load models import this.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import Final

import torch

LOADING: Final = Lock()
"""Held while transformers loads a model: it changes its own classes and PyTorch's number type meanwhile.

Two threads that load at once leave them changed: tied weights of later models stay empty.
"""


class DeviceError(Exception):
    """Raised when this machine does not have a device."""


@dataclass(frozen=True)
class Placement:
    """The device and the number type that a model computes with."""

    device: torch.device
    dtype: torch.dtype

    @staticmethod
    def choose(device: str, dtype: str) -> Placement:
        """Return the device and the number type for settings.

        Args:
            device: ``auto`` (the first CUDA device, else the CPU), ``cpu``, ``cuda`` or ``cuda:<n>``.
            dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``; auto is bfloat16 on GPUs that have it
                and on CPUs with bfloat16 dot products (AMX or AVX-512 BF16: at least twice the matrix speed
                of float32), float32 elsewhere.

        Raises:
            DeviceError: there is no such device.
        """
        name = ("cuda:0" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        try:
            place = torch.device("cuda:0" if name == "cuda" else name)
            torch.empty(1, device=place)
        except (RuntimeError, AssertionError):
            raise DeviceError(f"no device {name!r} on this machine") from None
        if dtype != "auto":
            return Placement(place, getattr(torch, dtype))
        return Placement(place, torch.bfloat16 if _multiplies_bfloat16(place) else torch.float32)

    @property
    def dtype_name(self) -> str:
        """Return the name of the number type, such as ``bfloat16``."""
        return str(self.dtype).removeprefix("torch.")


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return device.type == "cpu" and bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
