"""Encode on a Triton server: the ``embed`` model of the generator's repository, or one with its interface.

Tensors: ``text`` BYTES [n, 1] in, ``embedding`` FP32 [n, dimension] out, n up to the model's max_batch_size.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from opentelemetry import context as otel_context
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from evenmesh.wire import deadline
from evenmesh.wire.channel import DEFAULT_MAX_MESSAGE_BYTES, with_scheme
from evenmesh.wire.errors import DeadlineExceeded, Unavailable
from evenmesh_kit.telemetry.recorder import inject_context
from evenmesh_retriever import cost
from evenmesh_retriever.backends.dense.model_options import BUNDLED
from evenmesh_retriever.domain import VectorArray
from evenmesh_retriever.ports import CannotStart
from evenmesh_retriever.steps import in_batches

SCHEME: Final = "triton://"
"""Begins a setting that names an encoder of a Triton server: ``triton://host:port/model``."""

_ADDRESS: Final = re.compile(rf"{SCHEME}(?P<target>[^/\s]+:\d+)(/(?P<model>[\w.-]+))?/?")
_MODEL: Final = "embed"
_START_S: Final = 10.0
_LONGEST_S: Final = 120.0
_USUAL_TOKENS: Final = 512
_TEXT, _EMBEDDING = "text", "embedding"
# What of a model's parameters its vectors follow from.
_TELLING: Final = ("model_path", "pooling", "prefix", "normalize")


class TritonEncoder:
    """Vectors of length 1 from a Triton server. Its methods wait for the server, in the thread that calls.

    The server gathers what many ask at a time into batches, so that a vector may differ in its last bits from
    one time to the next; equal passages of one call have equal vectors.

    A name may stand for several servers, such as the pods of a headless Service: they take turns, and must
    serve the same model.

    Its fingerprint is made of the model's name, version and parameters: who serves other weights under these
    must raise the version, as Triton has it anyway.

    Args:
        address: ``triton://host:port/model``; without a model ``embed``.
        query_prefix: what queries begin with, besides what the server adds to all texts.
        passage_prefix: what passages begin with, likewise.
        setting: name of the setting that the address comes from, for errors.
        credentials: of TLS; None speaks plainly.

    Raises:
        CannotStart: the address is none, no server answers there, or it has no such model.
    """

    def __init__(
        self,
        address: str,
        *,
        query_prefix: str = "",
        passage_prefix: str = "",
        setting: str = "encoder",
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        match = _ADDRESS.fullmatch(address)
        if match is None:
            raise CannotStart(f"{setting}={address!r}: must be {SCHEME}host:port/model")
        self._address = address
        self._target, self._model = match["target"], match["model"] or _MODEL
        self._prefixes = query_prefix, passage_prefix
        self._client = InferenceServerClient(
            with_scheme(self._target),
            creds=credentials,
            channel_args=[
                ("grpc.max_send_message_length", DEFAULT_MAX_MESSAGE_BYTES),
                ("grpc.max_receive_message_length", DEFAULT_MAX_MESSAGE_BYTES),
                # Servers of one name take turns, and calls go on at the others where one is away.
                ("grpc.lb_policy_name", "round_robin"),
                # Back within a second once the server is.
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )
        self.device = f"{SCHEME}{self._target}"
        self.precision = "as Triton serves them"
        # The server does not say how many it reads: those of the usual encoders.
        self.max_tokens = _USUAL_TOKENS
        self.dimension = 0
        try:
            metadata = self._client.get_model_metadata(self._model, as_json=True, client_timeout=_START_S)
            answer = self._client.get_model_config(self._model, as_json=True, client_timeout=_START_S)
            self._batch, self.name, parameters = _read(answer["config"])
            first = self._encode(["dimension"])
        except InferenceServerException as error:
            raise CannotStart(f"{setting}={address!r}: {_said(error)}") from None
        except (Unavailable, DeadlineExceeded, _Unfit) as error:
            raise CannotStart(f"{setting}={address!r}: {error}") from None
        self.dimension = first.shape[1]
        described = [self._model, metadata.get("versions", []), parameters, self._prefixes, self.dimension]
        digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()
        self.fingerprint = f"triton-{digest[:16]}"

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return about the tokens that the model reads of passages; the server does not say."""
        return cost.encoding([len(text.encode()) for text in texts], _USUAL_TOKENS)

    def encode_query(self, text: str) -> VectorArray:
        """Return the vector of one query, ``[dimension]``.

        Raises:
            Unavailable: the server does not answer, or answers with vectors of another length than it did.
            DeadlineExceeded: it does not in time.
        """
        vector: VectorArray = self._encode([self._prefixes[0] + text])[0]
        return vector

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        """Return the vectors of passages, ``[len(texts), dimension]``; equal texts are encoded once.

        Raises:
            Unavailable, DeadlineExceeded: as :meth:`encode_query`.
        """

        def encode(batch: list[str]) -> VectorArray:
            return self._encode([self._prefixes[1] + text for text in batch])

        found = in_batches(texts, self._batch, encode, progress)
        return np.array(found, dtype=np.float32).reshape(-1, self.dimension)

    def _encode(self, texts: Sequence[str]) -> VectorArray:
        tensor = InferInput(_TEXT, [len(texts), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_))
        try:
            reply = self._client.infer(
                self._model,
                [tensor],
                client_timeout=deadline.current().budget(cap_s=_LONGEST_S),
                headers=dict(inject_context(otel_context.get_current())) or None,
            )
        except InferenceServerException as error:
            if error.status() == "StatusCode.DEADLINE_EXCEEDED":
                raise DeadlineExceeded(f"the encoder at {self._address} did not answer in time") from None
            raise Unavailable(
                "ENCODER_UNAVAILABLE", f"the encoder at {self._address}: {_said(error)}"
            ) from None
        found = reply.as_numpy(_EMBEDDING)
        if found is None or found.ndim != 2 or len(found) != len(texts) or not found.shape[1]:
            raise _Unfit(f"answers without {_EMBEDDING!r} FP32 [{len(texts)}, dimension]")
        if self.dimension not in (0, found.shape[1]):
            raise Unavailable(
                "ENCODER_CHANGED",
                f"the encoder at {self._address} gives vectors of {found.shape[1]} dimensions, not of "
                f"{self.dimension} as when this service started: start it again, or serve the model it had",
            )
        if not np.isfinite(found).all():
            raise Unavailable(
                "ENCODER_UNAVAILABLE", f"the encoder at {self._address} gives no finite numbers"
            )
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        vectors: VectorArray = (found / np.maximum(lengths, 1e-12)).astype(np.float32)
        return vectors


class _Unfit(Exception):  # noqa: N818 - translated by its caller
    """The model is not one that makes vectors of texts."""


def _read(config: dict[str, Any]) -> tuple[int, str, dict[str, str]]:
    """Return the batch size of the model, the name of its source, and what determines its vectors."""
    inputs = {one["name"]: one["data_type"] for one in config.get("input", [])}
    outputs = {one["name"]: one["data_type"] for one in config.get("output", [])}
    if inputs.get(_TEXT) != "TYPE_STRING" or outputs.get(_EMBEDDING) != "TYPE_FP32":
        raise _Unfit(
            f"{config.get('name')!r} is no encoder: it needs {_TEXT!r} STRING in and {_EMBEDDING!r} FP32 "
            f"out, and has {', '.join([*inputs, *outputs]) or 'neither'}"
        )
    all_of_them = config.get("parameters", {})
    telling = {key: all_of_them.get(key, {}).get("string_value", "") for key in _TELLING}
    return max(1, int(config.get("max_batch_size", 1))), Path(telling["model_path"]).name or BUNDLED, telling


def _said(error: InferenceServerException) -> str:
    """Return what went wrong, in a line."""
    text = (error.message() or type(error).__name__).strip().splitlines()[0]
    if error.status() == "StatusCode.UNAVAILABLE":
        return f"no Triton server answers ({text})"
    return f"Triton says: {text}"
