"""A cross-encoder in OpenVINO, without PyTorch or transformers.

No score depends on other pairs.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from evenmesh_kit.compute import converting, idle_memory
from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cpu_engine import EngineError, installed_version
from evenmesh_kit.compute.lengths import alike
from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_kit.compute.openvino_runtime import (
    CompiledLayers,
    CompiledModel,
    LayerChanges,
    multiplies_bfloat16,
)
from evenmesh_reranker.backends.file_tokenizer import FileTokenizer
from evenmesh_reranker.domain import Agent, Fusion
from evenmesh_reranker.models import fusions, pairs, token_names, tokens
from evenmesh_reranker.models.fusions import Fusions
from evenmesh_reranker.ports import Adapter, LoadedModel, Row

if TYPE_CHECKING:
    from torch import Tensor

    from evenmesh_reranker.backends.encoder import EncoderLoader

_log = logging.getLogger("evenmesh.reranker.models")

MODULE: Final = "evenmesh_reranker.backends.conversion"
"""What converts a model."""
ADAPTER: Final = "adapter.safetensors"
"""Name of the file in an adapter's version; see :mod:`evenmesh_reranker.backends.adapters`."""
LAYERS: Final = "layers.xml"
"""From embeddings of words, a mask and segments if it reads them, and changes, to what the head reads."""
HEAD: Final = "head.xml"
"""From the states, and changes, to one logit or those of two classes, ``[1, labels]``."""
WORDS: Final = "words.npy"
"""Embeddings of words, float32 ``[vocabulary, hidden]``."""
CHECKED: Final = "checked.npz"
"""What PyTorch computes for drawn tokens: ``ids_<n>``, ``states_<n>`` and ``score_<n>`` by their number n."""
ABOUT: Final = "about.json"
"""What else a conversion says of the model, as :class:`CompiledCrossEncoder` reads it."""
PROBED: Final = (3, 28)
"""Tokens of the rows that are compared with PyTorch's."""

_VERSION: Final = "8"
_LEAST_COSINE: Final = {False: 0.9999, True: 0.99}
"""To PyTorch's states, by whether it is bfloat16; a wrong conversion is far below."""
_ALIKE: Final = 0.1
"""Most difference of a score from PyTorch's: bfloat16's is far below, a wrong head's far above."""

Array = NDArray[np.float32]
Sizes = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, eq=False)
class CompiledAdapter:
    """An :class:`evenmesh_reranker.ports.Adapter` of a compiled model.

    Attributes:
        version: version of the changes.
        pairs: by layer, A of shape [rank, inputs] and B of shape [outputs, rank], float32; empty if no layer
            changes.
        fusion: how scores are fused with those of a first stage; None: as the model says.
    """

    version: str
    pairs: Mapping[str, tuple[Array, Array]]
    fusion: Fusion | None = None

    @property
    def size(self) -> int:
        """Size in memory. Bytes."""
        return sum(one.nbytes for pair in self.pairs.values() for one in pair)

    @classmethod
    def load(cls, folder: Path, version: str, layers: Sizes) -> CompiledAdapter:
        """Return the adapter in a folder, for a model with these linear layers.

        Raises:
            ModelError: it cannot be read, or does not fit the model.
        """
        try:
            found = load_file(folder / ADAPTER)
        except (OSError, SafetensorError, TypeError) as error:
            raise ModelError(f"the adapter {version} cannot be loaded: {one_line(error)}") from None
        made: dict[str, tuple[Array, Array]] = {}
        for key, down in found.items():
            name, _, half = key.rpartition(".")
            if half == "lora_B":
                continue
            up, sizes = found.get(f"{name}.lora_B"), layers.get(name)
            if half != "lora_A" or up is None or sizes is None:
                raise ModelError(f"the adapter {version} changes {key}, which is no linear layer of its base")
            inputs, outputs = sizes
            if down.shape != (up.shape[1], inputs) or up.shape[0] != outputs:
                raise ModelError(f"the adapter {version} has another shape than {name} of its base")
            made[name] = (down.astype(np.float32), up.astype(np.float32))
        if len(found) != 2 * len(made):
            raise ModelError(f"the adapter {version} has changes without their other half")
        return cls(version, made, fusions.read(folder))


@dataclass(frozen=True)
class _Changes:
    """An adapter's changes as the model reads them: those of the layers, and those of the head."""

    layers: tuple[Array, ...] | None
    head: tuple[Array, ...] | None


@dataclass(frozen=True)
class _Parts:
    """A converted model, compiled."""

    layers: CompiledLayers
    head: CompiledModel


class CompiledCrossEncoder:
    """A :class:`evenmesh_reranker.ports.LoadedModel` that computes on up to ``parallel`` processors.

    Each pair is computed on one processor. Word embeddings and the head are in float32.

    Args:
        folder: a cross-encoder, as :func:`evenmesh_reranker.backends.encoder.load` reads it.
        version: version of its weights.
        provenance: where it came from, for people.
        created_at: when its weights were made.
        dtype: number type of the layers: ``auto`` is bfloat16 where the processor has it.
        parallel: most processors at a time, each for other pairs, [1, inf).
        conversions: keeps the converted model.
        max_length: longest pair; None: what the model reads. Tokens.

    Raises:
        EngineError: OpenVINO cannot compute the model.
    """

    device = "cpu"

    def __init__(
        self,
        folder: Path,
        version: str,
        *,
        provenance: str,
        created_at: datetime,
        dtype: str,
        parallel: int,
        conversions: Conversions,
        max_length: int | None = None,
    ) -> None:
        self.version = version
        self.provenance = provenance
        self.created_at = created_at
        self.parallel = parallel
        self._folder = folder
        self._conversions = conversions
        self._bfloat16 = dtype == "bfloat16" or (dtype == "auto" and multiplies_bfloat16())
        # A fast tokenizer sets its truncation in place: two threads must not use it at once.
        self._lock = Lock()
        self._changing: _Parts | None = None
        self._compiling = Lock()
        self._changes: WeakKeyDictionary[CompiledAdapter, _Changes] = WeakKeyDictionary()
        converted = self._converted(changeable=False)
        try:
            about: dict[str, Any] = json.loads((converted / ABOUT).read_bytes())
            self.fusions = Fusions.parse(about["fusions"])
            self.reads_asking = bool(about["reads_asking"])
            self._inside: Sizes = {name: (sizes[0], sizes[1]) for name, sizes in about["layers"].items()}
            self._head: Sizes = {name: (sizes[0], sizes[1]) for name, sizes in about["head"].items()}
            self._reads_types = bool(about["reads_types"])
            limits = [one for one in (about["max_length"], max_length) if one is not None]
            self.max_length: int | None = min(limits, default=None)
            self.tokenizer = FileTokenizer(converted, about["inputs"])
            self.words: Array = np.load(converted / WORDS, mmap_mode="r", allow_pickle=False)
            """Embeddings of words, ``[vocabulary, hidden]``."""
            idle_memory.register(self.words)
            self._plain = self._compiled(converted)
            self.size = self.words.nbytes + sum(path.stat().st_size for path in converted.glob("*.bin"))
            self._check(np.load(converted / CHECKED, allow_pickle=False))
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"OpenVINO cannot compute the model: {one_line(error)}") from error

    @property
    def dtype(self) -> str:
        """Number type of the layers."""
        return "bfloat16" if self._bfloat16 else "float32"

    @property
    def linear_layers(self) -> Sizes:
        """Inputs and outputs of its linear layers, by name."""
        return {**self._inside, **self._head}

    @property
    def agent_tokens(self) -> tuple[str, ...]:
        """See the port."""
        return tokens.present(self.tokenizer)

    def knows(self, agent: Agent) -> bool:
        """See the port."""
        return tokens.has(self.tokenizer, *token_names.agent_tokens(agent))

    def add_agents(self, agents: Sequence[Agent]) -> None:
        """See the port."""
        with self._lock:
            if tokens.is_personal(self.tokenizer):
                self.words = tokens.with_agents(self.tokenizer, self.words, agents)

    def rows(self, query: str, texts: Sequence[str], agent: Agent) -> list[Row]:
        """See the port. No query or text becomes a special token."""
        count = len(texts)
        with self._lock:
            return pairs.rows(self.tokenizer, [query] * count, texts, [agent] * count, self.max_length)

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[Adapter | None]) -> list[float]:
        """See the port."""
        found: list[float] = []
        own = cast("Sequence[CompiledAdapter | None]", adapters)
        # Rows of an adapter that changes no layer are computed with those that have none.
        given = zip(rows, [one if one is not None and one.pairs else None for one in own], strict=True)
        for _, same in groupby(given, lambda one: (self._plain.layers.size(len(one[0].ids)), id(one[1]))):
            some, (adapter, *_) = zip(*same, strict=True)
            most = self._layers_of(adapter).together
            for begin in range(0, len(some), most):
                found += self._together(some[begin : begin + most], adapter)
        return found

    def batches(self, lengths: Sequence[int]) -> list[list[int]]:
        """See the port."""
        layers = self._plain.layers
        return alike([layers.size(one) for one in lengths], self.parallel, layers.together)

    def prepare(self, adapter: CompiledAdapter) -> None:
        """Do what takes seconds for the first adapter, so that no request waits for it.

        Raises:
            EngineError: OpenVINO cannot convert the model.
        """
        if adapter.pairs:
            self._changes_of(adapter)
            self._for_changes()

    def embeddings(self) -> Tensor:
        """Return its embeddings of words, ``[vocabulary, hidden]``; this imports PyTorch."""
        import torch

        return torch.from_numpy(np.array(self.words))

    def _together(self, rows: Sequence[Row], adapter: Adapter | None) -> list[float]:
        """Return the scores of rows of one size."""
        if adapter is None:
            return [_score(self._plain.head([one[None]])[0]) for one in self._states(rows)]
        changes, parts = self._changes_of(cast(CompiledAdapter, adapter)), self._for_changes()
        states = self._states(rows, changes.layers)
        if changes.head is None:
            return [_score(self._plain.head([one[None]])[0]) for one in states]
        return [_score(parts.head([one[None], *changes.head])[0]) for one in states]

    def _states(self, rows: Sequence[Row], changes: Sequence[Array] | None = None) -> list[Array]:
        """Return the last hidden states that the head reads, ``[tokens, hidden]`` or ``[1, hidden]`` each."""
        types = [row.types or [0] * len(row.ids) for row in rows] if self._reads_types else None
        compiled = self._plain if changes is None else self._for_changes()
        return compiled.layers.states(self.words, [row.ids for row in rows], types, changes or ())

    def _layers_of(self, adapter: Adapter | None) -> CompiledLayers:
        if adapter is None or self._changes_of(cast(CompiledAdapter, adapter)).layers is None:
            return self._plain.layers
        return self._for_changes().layers

    def _changes_of(self, adapter: CompiledAdapter) -> _Changes:
        found = self._changes.get(adapter)
        if found is None:
            found = self._changes[adapter] = _Changes(
                _arrays(self._inside, adapter.pairs), _arrays(self._head, adapter.pairs)
            )
        return found

    def _for_changes(self) -> _Parts:
        with self._compiling:
            if self._changing is None:
                converted = self._converted(changeable=True)
                try:
                    changing = self._compiled(converted)
                    self._try_together(changing.layers, LayerChanges(self._inside, {}).arrays)
                    self._changing = changing
                except Exception as error:
                    raise EngineError(f"OpenVINO cannot compute the model: {one_line(error)}") from error
            return self._changing

    def _converted(self, *, changeable: bool) -> Path:
        given = {"changeable": changeable}
        return converting.conversion(self._conversions, MODULE, self._folder, given, version=_VERSION)

    def _compiled(self, converted: Path) -> _Parts:
        return _Parts(
            CompiledLayers(
                converted / LAYERS,
                bfloat16=self._bfloat16,
                parallel=self.parallel,
                most=self.max_length,
            ),
            CompiledModel(converted / HEAD, bfloat16=False, parallel=self.parallel),
        )

    def _try_together(self, layers: CompiledLayers, changes: Sequence[Array] = ()) -> None:
        ids = self._probe.ids
        layers.try_together(self.words, ids, [0] * len(ids) if self._reads_types else None, changes)

    def _check(self, checked: Mapping[str, NDArray[Any]]) -> None:
        """Compare with PyTorch."""
        for count in PROBED:
            row = Row(tuple(checked[f"ids_{count}"].tolist()), None)
            wanted, found = checked[f"states_{count}"].ravel(), self._states([row])[0].ravel()
            cosine = float(wanted @ found / (np.linalg.norm(wanted) * np.linalg.norm(found)))
            if not cosine >= _LEAST_COSINE[self._bfloat16]:
                raise EngineError(
                    "OpenVINO does not compute what PyTorch does: the states of "
                    f"{count} tokens have a cosine of {cosine:.4f}"
                )
            score, right = self._together([row], None)[0], float(checked[f"score_{count}"])
            if not abs(score - right) <= _ALIKE:
                raise EngineError(f"its score would be {score:.4f} instead of {right:.4f}")
        self._probe = row
        self._try_together(self._plain.layers)


class CompiledLoader:
    """A :class:`evenmesh_reranker.ports.ModelLoader` of models that OpenVINO computes.

    Args:
        dtype: number type of the layers, see :class:`CompiledCrossEncoder`.
        parallel: most processors at a time, each for other pairs, [1, inf).
        conversions: keeps the converted models.
        required: whether a model that OpenVINO cannot compute is refused; else PyTorch computes it.
        threads: threads of PyTorch's matrix products then, [1, inf); None: one for each core.
        max_length: longest pair; None: what the model reads. Tokens.
    """

    def __init__(
        self,
        dtype: str,
        *,
        parallel: int,
        conversions: Conversions,
        required: bool,
        threads: int | None,
        max_length: int | None = None,
    ) -> None:
        self._dtype = dtype
        self._parallel = parallel
        self._conversions = conversions
        self._required = required
        self._threads = threads
        self._max_length = max_length

    def full(self, folder: Path, version: str, *, provenance: str, created_at: datetime) -> LoadedModel:
        """See the port."""
        try:
            found = CompiledCrossEncoder(
                folder,
                version,
                provenance=provenance,
                created_at=created_at,
                dtype=self._dtype,
                parallel=self._parallel,
                conversions=self._conversions,
                max_length=self._max_length,
            )
        except EngineError as error:
            if self._required:
                raise ModelError(f"{folder}: {error}") from None
            _log.warning("PyTorch computes %s: %s", folder, error)
            return self._by_pytorch().full(folder, version, provenance=provenance, created_at=created_at)
        _log.info(
            "OpenVINO %s computes the cross-encoder in %s, on up to %d processors at a time",
            installed_version(),
            found.dtype,
            self._parallel,
            extra={"version": version},
        )
        return found

    def adapter(self, folder: Path, version: str, base: LoadedModel) -> Adapter:
        """See the port."""
        if not isinstance(base, CompiledCrossEncoder):
            return self._by_pytorch().adapter(folder, version, base)
        found = CompiledAdapter.load(folder, version, base.linear_layers)
        try:
            base.prepare(found)
        except EngineError as error:
            raise ModelError(f"the adapter {version}: {error}") from None
        return found

    def merge_tokens(self, source: LoadedModel, folder: Path, target: Path) -> tuple[str, ...]:
        """See the port."""
        return self._by_pytorch().merge_tokens(source, folder, target)

    def _by_pytorch(self) -> EncoderLoader:
        from evenmesh_reranker.backends.encoder import EncoderLoader

        return EncoderLoader.create("cpu", self._dtype, threads=self._threads, max_length=self._max_length)


def _arrays(layers: Sizes, given: Mapping[str, tuple[Array, Array]]) -> tuple[Array, ...] | None:
    """Return the changes of some layers as their model reads them; None if there are none."""
    own = {name: pair for name, pair in given.items() if name in layers}
    return tuple(LayerChanges(layers, own).arrays) if own else None


def _score(logits: Array) -> float:
    """Return the score, [0, 1], from one logit, or the second of two classes' probability."""
    logit = float(logits[0]) if len(logits) == 1 else float(logits[1]) - float(logits[0])
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
