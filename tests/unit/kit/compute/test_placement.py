"""Where models compute, and in which number type."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from evenmesh_kit.compute import devices
from evenmesh_kit.compute.devices import DeviceError, choose_device, why_no_cuda
from evenmesh_kit.compute.placement import Placement, upload


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


def test_numbers_go_to_a_gpu_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """From pinned memory, and not blocking; elsewhere they are a tensor as any other."""
    assert upload([1, 2], torch.device("cpu")).tolist() == [1, 2]
    assert upload([0.5], torch.device("meta")).shape == (1,)
    calls: list[object] = []

    def pinned(self: torch.Tensor) -> torch.Tensor:
        calls.append("pinned")
        return self

    def sent(self: torch.Tensor, device: torch.device, *, non_blocking: bool = False) -> torch.Tensor:
        calls.append((str(device), non_blocking))
        return self

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(torch.Tensor, "to", sent)
    upload([1], torch.device("cuda", 1))
    assert calls == ["pinned", ("cuda:1", True)]


class Machine:
    """A machine whose CUDA starts, or does not for some reason."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def without(self, error: str = "", *, built: str | None = "13.0") -> None:
        def start() -> None:
            if error:
                raise RuntimeError(error)

        self._patch.setattr(torch.cuda, "is_available", lambda: False)
        self._patch.setattr(torch.version, "cuda", built)
        self._patch.setattr(torch.cuda, "init", start)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    ("built", "error", "says"),
    [
        (None, "", "built without CUDA; install the one of PyPI (images: VARIANT=cuda)"),
        (
            "13.0",
            "The driver is too old\n(found 12040)",
            "cannot start (The driver is too old (found 12040)); check nvidia-smi",
        ),
        ("13.0", "", "sees no GPU; check CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_required_gpu_that_is_not_there_is_an_error_that_says_what_to_do(
    machine: Machine, built: str | None, error: str, says: str
) -> None:
    machine.without(error, built=built)
    assert says in why_no_cuda()
    assert Placement.choose("auto", "float32").device.type == "cpu"
    with pytest.raises(DeviceError, match="a GPU is required, and models would run on the CPU") as refused:
        Placement.choose("auto", "float32", require_gpu=True)
    assert says in str(refused.value)
    with pytest.raises(DeviceError, match=r"no device 'cuda:0' on this machine: ") as missing:
        choose_device("cuda:0")
    assert says in str(missing.value)


def test_a_required_gpu_and_a_device_that_is_none_contradict() -> None:
    with pytest.raises(DeviceError, match="the device is set to 'cpu': set auto or cuda"):
        choose_device("cpu", require_gpu=True)


@pytest.mark.parametrize("driver", [True, False])
def test_a_gpu_that_is_left_unused_is_logged(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    *,
    driver: bool,
) -> None:
    machine.without("the driver is too old")
    monkeypatch.setattr(devices, "DRIVER", tmp_path if driver else tmp_path / "none")
    with caplog.at_level(logging.WARNING, "evenmesh.compute"):
        assert choose_device("auto").type == "cpu"
    assert ["the driver is too old" in one.getMessage() for one in caplog.records] == [True] * driver
