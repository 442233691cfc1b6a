"""Where models compute, and in which number type."""

from __future__ import annotations

import pytest
import torch

from evenmesh_kit.compute.placement import DeviceError, Placement


def test_on_the_cpu() -> None:
    assert Placement.choose("cpu", "float32") == Placement(torch.device("cpu"), torch.float32)
    assert Placement.choose("cpu", "bfloat16").dtype_name == "bfloat16"


def test_auto_is_bfloat16_where_the_processor_multiplies_it() -> None:
    capabilities = torch.cpu.get_capabilities()
    fast = bool(capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"))
    assert Placement.choose("cpu", "auto").dtype is (torch.bfloat16 if fast else torch.float32)


def test_auto_device_is_the_gpu_if_there_is_one() -> None:
    expected = "cuda:0" if torch.cuda.is_available() else "cpu"
    assert str(Placement.choose("auto", "float32").device) == expected


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_no_such_device(device: str) -> None:
    with pytest.raises(DeviceError, match=f"no device '{device}' on this machine"):
        Placement.choose(device, "auto")
