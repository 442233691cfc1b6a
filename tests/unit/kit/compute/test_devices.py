"""Devices of settings: PyTorch is asked only where it must tell."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from evenmesh_kit.compute import devices
from evenmesh_kit.compute.devices import DeviceError, device_name, surely_no_gpu


def test_the_cpu_needs_no_pytorch() -> None:
    program = (
        "import sys\nfrom evenmesh_kit.compute.devices import device_name\n"
        "print(device_name('cpu'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["cpu", "False"]


@pytest.mark.parametrize(
    ("version", "files", "surely"),
    [("2.13.0+cpu", ("nvidia0",), True), ("2.13.0", ("nvidiactl",), False), ("2.13.0+cu130", ("tty",), True)],
)
def test_a_gpu_is_possible_only_with_a_driver_and_a_pytorch_for_it(
    version: str, files: tuple[str, ...], surely: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    monkeypatch.setattr(devices, "Path", lambda _: tmp_path)
    assert surely_no_gpu() is surely


def test_a_gpu_that_is_required_is_not_the_cpu() -> None:
    pytest.importorskip("torch")
    with pytest.raises(DeviceError, match="a GPU is required"):
        device_name("cpu", require_gpu=True)
