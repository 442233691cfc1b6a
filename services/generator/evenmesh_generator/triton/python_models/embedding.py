"""``embed``: vectors of texts by the retriever's encoder, batched over callers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

import evenmesh_models
from evenmesh_generator.triton.python_models.backend import Backend, BackendRequest, read_inputs, response
from evenmesh_generator.triton.python_models.configuration import (
    Configuration,
    ConfigurationError,
    check_numpy,
)
from evenmesh_generator.triton.python_models.ending import exit_soon
from evenmesh_generator.triton.python_models.response_sender import sendable, triton_error
from evenmesh_generator.triton.tensors import read_texts
from evenmesh_kit.compute.model_files import ModelError, locate, one_line
from evenmesh_kit.compute.placement import Placement
from evenmesh_models import BaseModelError

_BATCH: Final = 32


class EmbeddingModel:
    """Implements ``embed``.

    Args:
        backend: ``triton_python_backend_utils``.
        args: what Triton hands to ``initialize``.

    Raises:
        ConfigurationError: a parameter has a value that is not allowed, or NumPy does not fit the backend.
        ModelError: the encoder cannot be had.
        DeviceError: there is no such device.
    """

    def __init__(self, backend: Backend, args: Mapping[str, str]) -> None:
        check_numpy(backend)
        configuration = Configuration.read(args)
        torch.set_num_threads(configuration.integer("threads", torch.get_num_threads()))
        place = Placement.choose(configuration.place, configuration.text("dtype", "auto"))
        self._backend = backend
        self._prefix = configuration.text("prefix") or None
        self._normalize = configuration.switch("normalize") is not False
        self._encoder = _load(configuration.text("model_path"), str(place.device)).to(place.dtype)
        if pooling := configuration.text("pooling"):
            _pool(self._encoder, pooling, configuration.model)

    def execute(self, requests: Sequence[BackendRequest]) -> list[object]:
        """Return one response for each request, in order; encode all their texts together."""
        outcomes: list[list[str] | object] = []
        texts: list[str] = []
        for request in requests:
            try:
                own = read_texts(read_inputs(request)["text"], "text")
            except Exception as error:  # noqa: BLE001 - the caller receives it
                outcomes.append(self._failed(error))
                continue
            outcomes.append(own)
            texts += own
        try:
            vectors: Any = self._encoder.encode(
                texts,
                prompt=self._prefix,
                batch_size=_BATCH,
                normalize_embeddings=self._normalize,
                convert_to_tensor=True,
                show_progress_bar=False,
            )
            rows = vectors.float().cpu().numpy() if texts else np.empty((0, 0), dtype=np.float32)
        except Exception as error:  # noqa: BLE001 - the caller receives it
            return [self._failed(error) if isinstance(own, list) else own for own in outcomes]
        responses: list[object] = []
        at = 0
        for outcome in outcomes:
            if isinstance(outcome, list):
                own_rows = np.ascontiguousarray(rows[at : at + len(outcome)])
                responses.append(response(self._backend, {"embedding": own_rows}))
                at += len(outcome)
            else:
                responses.append(outcome)
        return responses

    def close(self) -> None:
        """End the process."""
        exit_soon()

    def _failed(self, error: Exception) -> object:
        return self._backend.InferenceResponse(error=triton_error(self._backend, sendable(error)))


def _load(path: str, device: str) -> SentenceTransformer:
    if path:
        source = str(locate(path, allow_download=False))
    else:
        try:
            source = str(evenmesh_models.minilm())
        except BaseModelError as error:
            raise ModelError(str(error)) from None
    try:
        return SentenceTransformer(
            source, device=device, local_files_only=True, trust_remote_code=False
        ).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{source} cannot be loaded: {one_line(error)}") from None


def _pool(encoder: SentenceTransformer, pooling: str, model: str) -> None:
    for name, module in encoder.named_children():
        if isinstance(module, Pooling):
            try:
                encoder._modules[name] = Pooling(module.embedding_dimension, pooling)
            except ValueError as error:
                raise ConfigurationError(
                    f"{model}: parameter pooling={pooling!r}: {one_line(error)}"
                ) from None
            return
    raise ConfigurationError(f"{model}: parameter pooling={pooling!r}: the encoder pools in a way of its own")
