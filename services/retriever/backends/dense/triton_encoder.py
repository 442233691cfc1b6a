"""An encoder that a Triton server runs: ``embed`` of the generator's repository, or one that speaks as it.

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

from meshkit import deadline
from meshkit.channel import DEFAULT_MAX_MESSAGE_BYTES, with_scheme
from meshkit.errors import DeadlineExceeded, Unavailable
from meshkit.recorder import injected
from services.retriever.domain import VectorArray
from services.retriever.ports import CannotStart

SCHEME: Final = "triton://"
"""Begins a setting that names an encoder of a Triton server: ``triton://host:port/model``."""

_ADDRESS: Final = re.compile(rf"{SCHEME}(?P<target>[^/\s]+:\d+)(/(?P<model>[\w.-]+))?/?")
_MODEL: Final = "embed"
_START_S: Final = 10.0
_LONGEST_S: Final = 120.0
_TEXT, _EMBEDDING = "text", "embedding"
# What of a model's parameters its vectors follow from.
_TELLING: Final = ("model_path", "pooling", "prefix", "normalize")
_BUNDLED: Final = "all-MiniLM-L6-v2"


class TritonEncoder:
    """Vectors of length 1 from a Triton server. Its methods wait for the server, in the thread that calls.

    The server gathers what many ask at a time into batches, so that a vector may differ in its last bits from
    one time to the next; equal passages of one call have equal vectors.

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
                # Back within a second once the server is.
                ("grpc.max_reconnect_backoff_ms", 1000),
            ],
        )
        self._dimension = 0
        try:
            metadata = self._client.get_model_metadata(self._model, as_json=True, client_timeout=_START_S)
            told = self._client.get_model_config(self._model, as_json=True, client_timeout=_START_S)
            self._batch, self._name, parameters = _read(told["config"])
            first = self._encode(["dimension"])
        except InferenceServerException as error:
            raise CannotStart(f"{setting}={address!r}: {_said(error)}") from None
        except (Unavailable, DeadlineExceeded, _Unfit) as error:
            raise CannotStart(f"{setting}={address!r}: {error}") from None
        self._dimension = first.shape[1]
        described = [self._model, metadata.get("versions", []), parameters, self._prefixes, self._dimension]
        digest = hashlib.sha256(json.dumps(described).encode()).hexdigest()
        self._fingerprint = f"triton-{digest[:16]}"

    @property
    def name(self) -> str:
        """Name of the model that the server's model was made of."""
        return self._name

    @property
    def fingerprint(self) -> str:
        """Hash of the model's name, version and parameters, the prefixes and the dimension."""
        return self._fingerprint

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return self._dimension

    @property
    def device(self) -> str:
        """The server."""
        return f"{SCHEME}{self._target}"

    @property
    def precision(self) -> str:
        """The server's own affair."""
        return "as Triton serves them"

    def encode_query(self, text: str) -> VectorArray:
        """The vector of one query, ``[dimension]``.

        Raises:
            Unavailable: the server does not answer, or answers with vectors of another length than it did.
            DeadlineExceeded: it does not in time.
        """
        vector: VectorArray = self._encode([self._prefixes[0] + text])[0]
        return vector

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        """The vectors of passages, ``[len(texts), dimension]``; equal texts are encoded once.

        Raises:
            Unavailable, DeadlineExceeded: as :meth:`encode_query`.
        """
        place = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        distinct = sorted(place, key=lambda text: (-len(text), text))
        vectors = np.empty((len(distinct), self._dimension), dtype=np.float32)
        for begin in range(0, len(distinct), self._batch):
            batch = distinct[begin : begin + self._batch]
            vectors[[place[text] for text in batch]] = self._encode(
                [self._prefixes[1] + one for one in batch]
            )
            progress(min(begin + self._batch, len(distinct)))
        return vectors[[place[text] for text in texts]]

    def _encode(self, texts: Sequence[str]) -> VectorArray:
        tensor = InferInput(_TEXT, [len(texts), 1], "BYTES")
        tensor.set_data_from_numpy(np.array([[text.encode()] for text in texts], dtype=np.object_))
        try:
            reply = self._client.infer(
                self._model,
                [tensor],
                client_timeout=deadline.current().budget(cap_s=_LONGEST_S),
                headers=dict(injected(otel_context.get_current())) or None,
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
        if self._dimension not in (0, found.shape[1]):
            raise Unavailable(
                "ENCODER_CHANGED",
                f"the encoder at {self._address} gives vectors of {found.shape[1]} dimensions, not of "
                f"{self._dimension} as when this service started: start it again, or serve the model it had",
            )
        if not np.isfinite(found).all():
            raise Unavailable(
                "ENCODER_UNAVAILABLE", f"the encoder at {self._address} gives no finite numbers"
            )
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        vectors: VectorArray = (found / np.maximum(lengths, 1e-12)).astype(np.float32)
        return vectors


class _Unfit(Exception):  # noqa: N818 - told as what it means
    """The model is not one that makes vectors of texts."""


def _read(config: dict[str, Any]) -> tuple[int, str, dict[str, str]]:
    """Rows that the model takes at a time, the name of what it was made of, what its vectors follow from."""
    inputs = {one["name"]: one["data_type"] for one in config.get("input", [])}
    outputs = {one["name"]: one["data_type"] for one in config.get("output", [])}
    if inputs.get(_TEXT) != "TYPE_STRING" or outputs.get(_EMBEDDING) != "TYPE_FP32":
        raise _Unfit(
            f"{config.get('name')!r} is no encoder: it needs {_TEXT!r} STRING in and {_EMBEDDING!r} FP32 "
            f"out, and has {', '.join([*inputs, *outputs]) or 'neither'}"
        )
    all_of_them = config.get("parameters", {})
    telling = {key: all_of_them.get(key, {}).get("string_value", "") for key in _TELLING}
    return max(1, int(config.get("max_batch_size", 1))), Path(telling["model_path"]).name or _BUNDLED, telling


def _said(error: InferenceServerException) -> str:
    """What went wrong, in a line."""
    text = (error.message() or type(error).__name__).strip().splitlines()[0]
    if error.status() == "StatusCode.UNAVAILABLE":
        return f"no Triton server answers ({text})"
    return f"Triton says: {text}"
