"""Choose what computes a dense encoder in this process: OpenVINO, or PyTorch."""

from __future__ import annotations

import logging

from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import CpuEngine, EngineError, computes
from evenmesh_kit.compute.devices import DeviceError, device_name
from evenmesh_retriever.backends.dense.model_options import BUNDLED, ModelOptions, Precision
from evenmesh_retriever.ports import CannotStart, Encoder

_log = logging.getLogger("evenmesh.retriever.encoder")


def encoder_in_process(
    model: str = BUNDLED,
    options: ModelOptions = ModelOptions(),  # noqa: B008 - it never changes
    *,
    device: str = "auto",
    precision: Precision = "auto",
    threads: int = 1,
    setting: str = "model",
    batch: int | None = None,
    require_gpu: bool = False,
    engine: CpuEngine = "auto",
    engine_setting: str = "engine",
    conversions: Conversions,
) -> Encoder:
    """Return an encoder; PyTorch is imported only where it computes, or must tell which device it has.

    Args:
        model: :data:`BUNDLED`, the folder of a model, or a name in the local Hugging Face cache; nothing is
            downloaded.
        options: how it reads texts.
        device: ``auto`` (a GPU if PyTorch sees one), ``cpu`` or ``cuda:0``.
        precision: ``bf16`` multiplies matrices in bfloat16, ``auto`` does so where the processor has
            instructions for it.
        threads: PyTorch's threads of one encoding, [1, inf).
        setting: name of the setting ``model`` comes from, for errors.
        batch: most passages that PyTorch encodes together; None: 16 on a CPU, any number on a GPU.
        require_gpu: whether the CPU is refused.
        engine: what computes on the CPU; ``auto`` is OpenVINO where it is installed and can compute the
            model.
        engine_setting: name of the setting ``engine`` comes from, for errors.
        conversions: keeps what OpenVINO computes.

    Raises:
        CannotStart: there is no such model or device, it cannot be loaded, or ``engine`` cannot compute it.
    """
    try:
        on_cpu = computes(engine, device_name(device, require_gpu=require_gpu))
    except DeviceError:
        on_cpu = False  # PyTorch's encoder says which setting to correct
    except EngineError as error:
        raise CannotStart(f"{engine_setting}={engine!r}: {error}") from None
    if on_cpu:
        from evenmesh_retriever.backends.dense.compiled_encoder import CompiledEncoder, NoModelError

        try:
            return CompiledEncoder(model, options, precision=precision, conversions=conversions)
        except NoModelError:
            if "/" in model:  # sentence-transformers knows more of names without an owner
                raise CannotStart.without_model(setting, model) from None
        except EngineError as error:
            if engine == "openvino":
                raise CannotStart(f"{engine_setting}={engine!r}: {error}") from None
            _log.warning("PyTorch computes the encoder %s: %s", model, error)
    from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder

    return SentenceEncoder(
        model,
        options,
        device=device,
        precision=precision,
        threads=threads,
        setting=setting,
        batch=batch,
        require_gpu=require_gpu,
    )
