"""A cross-encoder whose layers OpenVINO computes, each pair alone: no score depends on other pairs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import torch
from sentence_transformers import CrossEncoder
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions

from evenmesh_kit.compute.conversions import Conversions
from evenmesh_kit.compute.cores import usable_cores
from evenmesh_kit.compute.cpu_engine import CpuEngine, EngineError, computes, installed_version
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.openvino_encoder import POOLER, LayerChanges, OpenVinoEncoder
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.backends.adapters import LowRankAdapter, applied
from evenmesh_reranker.backends.encoder import Encoder, EncoderLoader, load, scores_of
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import pairs
from evenmesh_reranker.ports import Adapter, LoadedModel, Row

_log = logging.getLogger("evenmesh.reranker.models")

_ALIKE: Final = 0.1
"""Most difference of a score from PyTorch's: bfloat16's is far below, a wrong head's far above."""


@dataclass(frozen=True)
class _Parts:
    """An adapter's changes of the layers, as they are computed, and of the head."""

    layers: LayerChanges | None
    head: LowRankAdapter


class OpenVinoCrossEncoder(Encoder):
    """An :class:`Encoder` that computes up to ``parallel`` pairs at a time, each on one processor.

    Word embeddings and the head are PyTorch's, in float32. The layers between them are in the placement's
    number type; their weights in PyTorch are freed.

    Args:
        encoder: see :class:`Encoder`; on the CPU.
        version: see there.
        provenance: see there.
        created_at: see there.
        placement: see there.
        parallel: most pairs computed at a time, [1, inf).
        conversions: keeps the converted layers.
        reload: loads the encoder again; the first adapter needs it.

    Raises:
        EngineError: OpenVINO cannot compute the model; ``encoder`` is as before.
    """

    def __init__(
        self,
        encoder: CrossEncoder,
        version: str,
        *,
        provenance: str,
        created_at: datetime,
        placement: Placement,
        parallel: int,
        conversions: Conversions,
        reload: Callable[[], CrossEncoder],
    ) -> None:
        super().__init__(encoder, version, provenance=provenance, created_at=created_at, placement=placement)
        model = cast(Any, encoder.model)
        if encoder.tokenizer.padding_side == "left":
            raise EngineError("its tokenizer pads on the left, as those of decoders do")
        self._prefix: str = model.base_model_prefix
        self._base: Any = getattr(model, self._prefix, None)
        if self._base is None:
            raise EngineError("it has no encoder under the name of its base model")
        self._layers = OpenVinoEncoder(
            self._base,
            bfloat16=placement.dtype is torch.bfloat16,
            parallel=parallel,
            conversions=conversions,
        )
        self._adapters: WeakKeyDictionary[LowRankAdapter, _Parts] = WeakKeyDictionary()
        self._states = torch.empty(0)
        checked = self._checked_rows()
        wanted = super().probabilities(checked, [None] * len(checked))
        self._base.forward = self._given
        found = self.probabilities(checked, [None] * len(checked))
        if not all(abs(one - other) <= _ALIKE for one, other in zip(found, wanted, strict=True)):
            del self._base.forward
            raise EngineError(f"its scores would be {found} instead of {wanted}")
        self._layers.release(lambda: getattr(reload().model, self._prefix))

    @property
    def parallel(self) -> int:
        """See the port."""
        return self._layers.parallel

    def probabilities(self, rows: Sequence[Row], adapters: Sequence[Adapter | None]) -> list[float]:
        """See the port."""
        low_rank = cast("Sequence[LowRankAdapter | None]", adapters)
        return [self._alone(row, adapter) for row, adapter in zip(rows, low_rank, strict=True)]

    def prepare(self, adapter: LowRankAdapter) -> None:
        """Do what takes seconds for the first adapter, so that no request waits for it.

        Raises:
            EngineError: OpenVINO cannot convert the model.
        """
        if self._parts(adapter).layers is not None:
            self._layers.prepare_changes()

    def _alone(self, row: Row, adapter: LowRankAdapter | None) -> float:
        features = pairs.padded(self.encoder.tokenizer, [row])
        types = features.get("token_type_ids")
        parts = None if adapter is None else self._parts(adapter)
        with torch.inference_mode():
            with self._model_lock:
                embedded: Tensor = self._base.get_input_embeddings()(features["input_ids"])[0]
            states = self._layers.states(
                embedded.float(), None if types is None else types[0], None if parts is None else parts.layers
            )
            with self._model_lock, applied(self.encoder.model, [None if parts is None else parts.head]):
                self._states = states[None]
                logits: Tensor = self.encoder(features)["scores"]
        return scores_of(logits)[0]

    def _parts(self, adapter: LowRankAdapter) -> _Parts:
        found = self._adapters.get(adapter)
        if found is None:
            inside: dict[str, tuple[Tensor, Tensor]] = {}
            head: dict[str, tuple[Tensor, Tensor]] = {}
            for name, pair in adapter.pairs.items():
                own = name.removeprefix(f"{self._prefix}.")
                is_head = own == name or own.partition(".")[0] == POOLER
                (head if is_head else inside)[name if is_head else own] = pair
            layers = self._layers.changes(inside) if inside else None
            found = self._adapters[adapter] = _Parts(layers, LowRankAdapter(adapter.version, head))
        return found

    def _checked_rows(self) -> list[Row]:
        """Return a short and a longer pair."""
        return [*self.rows("a", ["b"], Agent()), *self.rows("what is it", ["it is " * 20], Agent())]

    def _given(self, *_: Any, **__: Any) -> BaseModelOutputWithPoolingAndCrossAttentions:
        """Return what the base model would, from the states that were computed before."""
        pooler = getattr(self._base, POOLER, None)
        pooled = None if pooler is None else pooler(self._states)
        return BaseModelOutputWithPoolingAndCrossAttentions(
            last_hidden_state=cast(Any, self._states), pooler_output=pooled
        )


class OpenVinoLoader(EncoderLoader):
    """An :class:`EncoderLoader` of models that OpenVINO computes.

    Args:
        placement: see there; on the CPU.
        parallel: most pairs computed at a time, [1, inf).
        conversions: keeps the converted layers.
        required: whether a model that OpenVINO cannot compute is refused; else PyTorch computes it.
        threads: threads of PyTorch's matrix products then, [1, inf).
        max_length: see there.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        parallel: int,
        conversions: Conversions,
        required: bool,
        threads: int,
        max_length: int | None = None,
    ) -> None:
        super().__init__(placement, max_length=max_length, narrow=True)
        self._parallel = parallel
        self._conversions = conversions
        self._required = required
        self._threads = threads
        # What is left to PyTorch is small: more threads would only wait for each other.
        torch.set_num_threads(1)

    def full(self, folder: Path, version: str, *, provenance: str, created_at: datetime) -> Encoder:
        """See the port."""
        encoder = load(folder, self.placement, max_length=self.max_length)
        try:
            found: Encoder = OpenVinoCrossEncoder(
                encoder,
                version,
                provenance=provenance,
                created_at=created_at,
                placement=self.placement,
                parallel=self._parallel,
                conversions=self._conversions,
                reload=partial(load, folder, self.placement),
            )
        except EngineError as error:
            if self._required:
                raise ModelError(f"{folder}: {error}") from None
            _log.warning("PyTorch computes %s: %s", folder, error)
            torch.set_num_threads(self._threads)
            return super().full(folder, version, provenance=provenance, created_at=created_at)
        _log.info(
            "OpenVINO %s computes the cross-encoder in %s, up to %d pairs at a time",
            installed_version(),
            self.placement.dtype_name,
            self._parallel,
            extra={"version": version},
        )
        return found

    def adapter(self, folder: Path, version: str, base: LoadedModel) -> LowRankAdapter:
        """See the port."""
        found = super().adapter(folder, version, base)
        if isinstance(base, OpenVinoCrossEncoder):
            try:
                base.prepare(found)
            except EngineError as error:
                raise ModelError(f"the adapter {version}: {error}") from None
        return found


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
) -> EncoderLoader:
    """Return the loader for this process by its settings; call it in a thread.

    Args:
        device: name of the device.
        dtype: name of the number type.
        engine: what computes on the CPU.
        threads: threads of one of PyTorch's matrix products; None: one for each core.
        parallel: pairs that OpenVINO computes at a time; None: one for each usable core.
        conversions: keeps the converted layers.
        max_length: longest pair; None: what the model reads. Tokens.
        require_gpu: whether the CPU is refused.

    Raises:
        DeviceError: there is no such device, or no GPU where one is required.
        EngineError: ``engine`` is OpenVINO, which is not installed, or the device is no CPU.
    """
    plain = EncoderLoader.create(
        device, dtype, threads=threads, max_length=max_length, require_gpu=require_gpu
    )
    if not computes(engine, str(plain.placement.device)):
        return plain
    return OpenVinoLoader(
        plain.placement,
        parallel=parallel or usable_cores(),
        conversions=conversions,
        required=engine == "openvino",
        threads=torch.get_num_threads(),
        max_length=max_length,
    )
