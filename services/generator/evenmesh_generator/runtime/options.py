"""How a model is loaded and run, and the limits of its loop that follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from evenmesh_generator.runtime.loops.decoding_loop import Limits, SmallPieces
from evenmesh_kit.compute.cpu_engine import CpuEngine
from evenmesh_kit.compute.lengths import rows_at_once

_CPU_SMALL = SmallPieces(pass_tokens=256, rows=16)
"""A pass and a step of the bundled model that take about 25 and 15 ms of a core with bfloat16."""

_JUDGED_BYTES = 2**27
"""Room on a GPU for the scores, in double precision, of passages that are judged together. Bytes."""

_DOUBLE = 8

_STATE_BYTES = 2**30
"""Room for the running batch of a model on the CPU. Bytes."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is loaded and run.

    Attributes:
        path: folder or hub repository of the model; empty for the bundled one.
        engine: ``auto`` (what suits the model), or ``ctranslate2`` for T5 and Llama shapes.
        template: template of in-prompt augmentation when a request names none; empty: by architecture.
        instruction: whether the model follows instructions; None: if its tokenizer has a chat template.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:<n>``.
        require_gpu: whether the CPU is refused.
        dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        max_input_tokens: most tokens it reads; None: what its configuration says.
        batch_tokens: most padded tokens of a pass over prompts, [1, inf).
        max_rows: most rows (beams counted) of the running batch, [1, inf).
        cache_bytes: room for encodings of passages and prompts. Bytes, [0, inf); 0 keeps none.
        state_bytes: room for what the running batch has read and written. Bytes, [1, inf); None: 1 GiB on the
            CPU, a third of what is free on a GPU.
        chunk_tokens: most prompt tokens computed between two steps of running answers, [1, inf).
        conversions: where models converted for CTranslate2 are kept; None: the user's cache.
        workers: threads that make prompts, [1, inf).
        allow_download: whether it may be fetched from the hub.
        cpu_engine: what encodes for a pointer model on the CPU; ``auto`` is OpenVINO where it is installed
            and can.
        parallel: pairs that OpenVINO encodes at a time, and parts of a batch of a pointer model that is so
            encoded, each on one core, [1, inf); None: one for each core that this process may use.
        home: where encoders converted for OpenVINO are kept if the user's cache cannot be written; None:
            PyTorch encodes.
    """

    path: str = ""
    engine: str = "auto"
    template: str = ""
    instruction: bool | None = None
    device: str = "auto"
    require_gpu: bool = False
    dtype: str = "auto"
    max_input_tokens: int | None = None
    batch_tokens: int = 8192
    max_rows: int = 64
    cache_bytes: int = 256 * 2**20
    state_bytes: int | None = None
    chunk_tokens: int = 1024
    conversions: Path | None = None
    workers: int = 1
    allow_download: bool = False
    cpu_engine: CpuEngine = "auto"
    parallel: int | None = None
    home: Path | None = None


def limits(options: EngineOptions, device: torch.device, vocabulary: int, *, parts: int = 1) -> Limits:
    """Return the limits of a loop whose model has so many words.

    Args:
        parts: of a batch that are computed at the same time, each by a thread.
    """
    room = options.state_bytes
    if room is None:
        room = torch.cuda.mem_get_info(device)[0] // 3 if device.type == "cuda" else _STATE_BYTES
    judged = rows_at_once(str(device)) or max(1, _JUDGED_BYTES // (_DOUBLE * vocabulary))
    small = _CPU_SMALL if device.type == "cpu" else None
    return Limits(options.max_rows, room, options.batch_tokens, options.chunk_tokens, judged, small, parts)
