"""Choose what computes cross-encoders in this process: OpenVINO, or PyTorch."""

from __future__ import annotations

from typing import Any

from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.cpu_engine import CpuEngine, computes
from evenmesh_kit.compute.devices import device_name
from evenmesh_reranker.ports import ModelLoader


def loader(
    device: str,
    dtype: str,
    *,
    engine: CpuEngine,
    threads: int | None,
    parallel: int | None,
    conversions: Conversions,
    max_length: int | None = None,
    require_gpu: bool = False,
) -> ModelLoader[Any, Any]:
    """Return the loader for this process by its settings; call it in a thread.

    Args:
        device: name of the device.
        dtype: name of the number type.
        engine: what computes on the CPU.
        threads: threads of one of PyTorch's matrix products; None: one for each core.
        parallel: processors that OpenVINO computes on; None: all that are usable.
        conversions: keeps what OpenVINO computes.
        max_length: longest pair; None: what the model reads. Tokens.
        require_gpu: whether the CPU is refused.

    Raises:
        DeviceError: there is no such device, or no GPU where one is required.
        EngineError: ``engine`` is OpenVINO, which is not installed, or the device is no CPU.
    """
    if computes(engine, device_name(device, require_gpu=require_gpu)):
        from evenmesh_reranker.backends.compiled_encoder import CompiledLoader

        return CompiledLoader(
            dtype,
            parallel=parallel or usable_cores(),
            conversions=conversions,
            required=engine == "openvino",
            threads=threads,
            max_length=max_length,
        )
    from evenmesh_reranker.backends.encoder import EncoderLoader

    return EncoderLoader.create(
        device, dtype, threads=threads, max_length=max_length, require_gpu=require_gpu
    )
