"""Compute converted models on processors with OpenVINO; needs neither PyTorch nor transformers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from queue import LifoQueue
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evenmesh_kit.compute import idle_memory
from evenmesh_kit.compute.cpu_engine import EngineError
from evenmesh_kit.compute.thread_names import threads_begin_as

_RANKS: Final = 4
"""Ranks of changes are rounded up to multiples of this, so that there are few shapes."""
_TILE: Final = 16
"""Rows of a tile of AMX: what fills no whole tile is computed with other instructions. Anywhere, a new size
of input takes time to prepare."""
_TOGETHER: Final = 4
"""Most padded rows that are computed together: weights are read once for all of them. More gain nothing
(MiniLM's size, OpenVINO 2026.4)."""


class CompiledModel:
    """A model as OpenVINO computes it; many threads may use it, and up to ``parallel`` compute at a time.

    Args:
        file: where it was saved, its name ends with ``.xml``; its weights are beside it.
        bfloat16: whether matrices are multiplied in bfloat16, where the processor can.
        parallel: most computations at a time, each on one processor in a thread of OpenVINO; further ones
            wait. [1, inf).
    """

    def __init__(self, file: Path, *, bfloat16: bool, parallel: int) -> None:
        self._tensor = package().Tensor
        # What is compiled keeps the weights that it was made of, and reads them again only for a new size of
        # input. Mapped by us, their pages can be given back.
        self._weights = np.memmap(file.with_suffix(".bin"), np.uint8, mode="c")
        idle_memory.register(self._weights)
        with threads_begin_as("openvino"):
            compiled = core().compile_model(
                core().read_model(file.read_bytes(), self._tensor(self._weights, shared_memory=True)),
                "CPU",
                {
                    "INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32",
                    # One processor for each computation, wherever the system puts it.
                    "NUM_STREAMS": parallel,
                    "INFERENCE_NUM_THREADS": parallel,
                    "ENABLE_CPU_PINNING": False,
                },
            )
            self._requests: LifoQueue[Any] = LifoQueue()
            for _ in range(parallel):
                self._requests.put(compiled.create_infer_request())

    def __call__(self, inputs: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
        """Return a copy of the first output for contiguous inputs."""
        request = self._requests.get()
        try:
            for at, one in enumerate(inputs):
                request.set_input_tensor(at, self._tensor(one, shared_memory=True))
            request.infer()
            found: NDArray[np.float32] = request.get_output_tensor(0).data.copy()
            return found
        finally:
            self._requests.put(request)


class CompiledLayers(CompiledModel):
    """The layers of an encoder that :func:`evenmesh_kit.compute.openvino_conversion.convert_layers` wrote.

    Args:
        file: as of :class:`CompiledModel`.
        bfloat16: as of :class:`CompiledModel`.
        parallel: as of :class:`CompiledModel`.
        most: most tokens that have positions, [2, inf): no row is padded beyond; None: any number has.
    """

    def __init__(self, file: Path, *, bfloat16: bool, parallel: int, most: int | None = None) -> None:
        super().__init__(file, bfloat16=bfloat16, parallel=parallel)
        self._most = most
        self._together = 1

    @property
    def together(self) -> int:
        """Most rows of one :meth:`size` that are computed together; 1 until :meth:`try_together`."""
        return self._together

    def size(self, count: int) -> int:
        """Return the tokens that a row of so many is computed with: its own number alone decides."""
        whole = -(-count // _TILE) * _TILE
        return whole if self._most is None else max(count, min(whole, self._most))

    def try_together(
        self,
        words: NDArray[Any],
        ids: Sequence[int],
        types: Sequence[int] | None = None,
        changes: Sequence[NDArray[np.float32]] = (),
    ) -> None:
        """Compute padded rows together from now on, if this one is the same to the last bit in company.

        So must one be that is four times as long: how products are split depends on their size.

        Args:
            words: as of :meth:`states`.
            ids: as of :meth:`states`.
            types: as of :meth:`states`.
            changes: as of :meth:`states`.
        """

        def states(times: int, rows: int) -> list[NDArray[np.float32]]:
            row = (list(ids) * times)[: self._most]
            segments = None if types is None else [(list(types) * times)[: self._most]] * rows
            return self.states(words, [row] * rows, segments, changes)

        def alike(times: int) -> bool:
            (alone,) = states(times, 1)
            return all(np.array_equal(one, alone) for one in states(times, _TOGETHER))

        self._together = _TOGETHER if alike(1) and alike(4) else 1

    def states(
        self,
        words: NDArray[Any],
        rows: Sequence[Sequence[int]],
        types: Sequence[Sequence[int]] | None = None,
        changes: Sequence[NDArray[np.float32]] = (),
    ) -> list[NDArray[np.float32]]:
        """Return the states of rows, ``[tokens, hidden]`` each, or where they are converted so of its first
        token.

        Args:
            words: embeddings of words, ``[vocabulary, hidden]``.
            rows: tokens of each, [2, inf); of one :meth:`size`.
            types: the segment of each token; None if the encoder reads none.
            changes: A and B of each changed layer.
        """
        counts = [len(ids) for ids in rows]
        size = self.size(counts[0])
        embedded = np.zeros((len(rows), size, words.shape[1]), np.float32)
        for at, ids in enumerate(rows):
            embedded[at, : counts[at]] = words[list(ids)]
        inputs: list[NDArray[Any]] = [embedded, _padded([[1] * count for count in counts], size)]
        if types is not None:
            inputs.append(_padded(types, size))
        found = self([*inputs, *changes])
        return [found[at, :count] for at, count in enumerate(counts)]


class LayerChanges:
    """Low-rank changes (LoRA; Hu et al. 2022) of linear layers, as a model that was converted for them reads.

    Args:
        layers: inputs and outputs of all its linear layers by name, in its order.
        pairs: by layer, A of shape [rank, inputs] and B of shape [outputs, rank], float32: its output y for
            input x becomes y + B A x.
    """

    def __init__(
        self,
        layers: Mapping[str, tuple[int, int]],
        pairs: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]],
    ) -> None:
        most = max((down.shape[0] for down, _ in pairs.values()), default=1)
        rank = -(-most // _RANKS) * _RANKS
        # A layer that is not changed reads zeros, which all of its size share.
        zeros = {
            size: np.zeros(size, np.float32) for pair in layers.values() for size in change_shapes(pair, rank)
        }
        self.arrays: list[NDArray[np.float32]] = []
        for name, sizes in layers.items():
            shapes = change_shapes(sizes, rank)
            if name not in pairs:
                self.arrays += [zeros[shape] for shape in shapes]
                continue
            for one, shape in zip(pairs[name], shapes, strict=True):
                missing = [(0, whole - given) for whole, given in zip(shape, one.shape, strict=True)]
                self.arrays.append(np.ascontiguousarray(np.pad(one, missing), dtype=np.float32))


def change_shapes(sizes: tuple[int, int], rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of A and B of a linear layer of so many inputs and outputs."""
    inputs, outputs = sizes
    return (rank, inputs), (outputs, rank)


def _padded(rows: Sequence[Sequence[int]], size: int) -> NDArray[np.int64]:
    """Return rows of numbers as int64 ``[rows, size]``, zeros behind them."""
    found = np.zeros((len(rows), size), np.int64)
    for at, values in enumerate(rows):
        found[at, : len(values)] = values
    return found


def multiplies_bfloat16() -> bool:
    """Return whether OpenVINO computes in bfloat16 on this processor.

    Raises:
        EngineError: OpenVINO is not installed.
    """
    return "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def package() -> Any:
    """Return the module ``openvino``, without its reports to its makers.

    Raises:
        EngineError: it is not installed.
    """
    # Importing and converting each send an event to Google Analytics, unless this package is missing.
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        import openvino
    except ImportError as error:
        why = " ".join(str(error).split())[:300]
        raise EngineError(f"OpenVINO cannot be imported: {why}") from None
    return openvino


@cache
def core() -> Any:
    """Return the one core of this process, which is never released.

    OpenVINO gives the thread that loads its plugin a stack for signals. With the last core it unmaps that
    stack, and where another thread lets go of it, the next signal of the first ends the process (2026.4,
    ``SigAltStackSetup``).

    Raises:
        EngineError: OpenVINO is not installed.
    """
    return package().Core()
