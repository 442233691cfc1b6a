"""The encoder of the pointer model in OpenVINO: no pair depends on others, each on one processor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evenmesh_generator.pointer.tokenization import LONGEST_PAIR
from evenmesh_kit.compute import converting, idle_memory
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.lengths import alike
from evenmesh_kit.compute.model_files import one_line
from evenmesh_kit.compute.openvino_runtime import CompiledLayers
from evenmesh_kit.compute.thread_names import name_thread

MODULE: Final = "evenmesh_generator.pointer.conversion"
"""What converts the encoder."""
ENCODER: Final = "encoder.xml"
"""From embeddings of words, a mask if any, and segments to what the decoder reads, ``[rows, L, width]``."""
CHECKED: Final = "checked.npz"
"""What PyTorch computes for drawn tokens: ``ids_<n>`` and ``read_<n>`` by their number n."""
PROBED: Final = (3, 41)
"""Tokens of the pairs that are compared with PyTorch's."""

_VERSION: Final = "4"
_LEAST_COSINE: Final = {False: 0.9999, True: 0.99}
"""To what PyTorch computes, by whether it is bfloat16; a wrong conversion is far below."""

Array = NDArray[np.float32]


class CompiledPointerEncoder:
    """Encodes pairs, on up to ``parallel`` processors at a time.

    Args:
        folder: a pointer model, as :func:`evenmesh_generator.pointer.artifact.load` reads it.
        words: its embeddings of words, float32 ``[vocabulary, H]``.
        bfloat16: whether matrices are multiplied in bfloat16.
        parallel: most processors at a time, each for other pairs, [1, inf).
        conversions: keeps the converted encoder.

    Raises:
        EngineError: OpenVINO cannot compute the encoder.
    """

    def __init__(
        self, folder: Path, words: Array, *, bfloat16: bool, parallel: int, conversions: Conversions
    ) -> None:
        self._words = words
        self._parallel = parallel
        idle_memory.register(words)  # of a file that safetensors mapped
        converted = converting.conversion(conversions, MODULE, folder, {}, version=_VERSION)
        self._pool = ThreadPoolExecutor(parallel, "pointer-encoder", initializer=name_thread)
        try:
            # Longer rows are of prompts that hold all passages, and are not padded.
            self._model = CompiledLayers(
                converted / ENCODER, bfloat16=bfloat16, parallel=parallel, most=LONGEST_PAIR
            )
            self._check(np.load(converted / CHECKED, allow_pickle=False), _LEAST_COSINE[bfloat16])
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"OpenVINO cannot compute the encoder: {one_line(error)}") from error

    def encode(self, rows: Sequence[Sequence[int]], heads: Sequence[int]) -> list[tuple[Array, Array, Array]]:
        """Return keys and values of all layers ``[L, 2 * layers * H]``, copy keys and states ``[L, H]``.

        Args:
            rows: tokens of the pairs, at least three each.
            heads: at which token of each its passage begins.
        """
        sizes = [self._model.size(len(row)) for row in rows]
        batches = alike(sizes, self._parallel, self._model.together)

        def read(batch: list[int]) -> list[Array]:
            return self._read([rows[at] for at in batch], [heads[at] for at in batch])

        found = [read(batches[0])] if len(batches) == 1 else self._pool.map(read, batches)
        read_of = {
            at: one
            for batch, some in zip(batches, found, strict=True)
            for at, one in zip(batch, some, strict=True)
        }
        return [self._parts(read_of[at]) for at in range(len(rows))]

    def _parts(self, read: Array) -> tuple[Array, Array, Array]:
        hidden = self._words.shape[1]
        return read[:, : -2 * hidden], read[:, -2 * hidden : -hidden], read[:, -hidden:]

    def _read(self, rows: Sequence[Sequence[int]], heads: Sequence[int]) -> list[Array]:
        return self._model.states(
            self._words,
            rows,
            [[int(at >= head) for at in range(len(row))] for row, head in zip(rows, heads, strict=True)],
        )

    def _check(self, checked: Mapping[str, NDArray[Any]], least: float) -> None:
        for count in PROBED:
            wanted = checked[f"read_{count}"].ravel()
            ids, head = checked[f"ids_{count}"].tolist(), count // 2
            found = self._read([ids], [head])[0].ravel()
            cosine = float(wanted @ found / (np.linalg.norm(wanted) * np.linalg.norm(found)))
            if not cosine >= least:
                raise EngineError(
                    "OpenVINO does not compute what PyTorch does: "
                    f"{count} encoded tokens have a cosine of {cosine:.4f}"
                )
        self._model.try_together(self._words, ids, [int(at >= head) for at in range(len(ids))])
