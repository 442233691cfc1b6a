"""Map errors of a Triton server to this mesh's errors.

A model's own errors come as the JSON object that its process made of a
:class:`~evenmesh.wire.errors.MeshError`. Everything else is Triton's or gRPC's: its message goes to the log,
and only what they mean leaves this service.
"""

from __future__ import annotations

import logging
import re
from typing import Final

import grpc
from tritonclient.utils import InferenceServerException

from evenmesh.wire.errors import (
    DeadlineExceeded,
    InvalidField,
    MeshError,
    NotFound,
    Overloaded,
    Unavailable,
    restored,
)
from evenmesh_generator.triton.tensors import read_error
from evenmesh_kit.rpc.statuses import to_mesh_error

REASON: Final = "TRITON_UNAVAILABLE"
"""Reason of every UNAVAILABLE of this backend."""

RETRY_S: Final = 1.0
"""Retry delay of errors that pass by themselves. Seconds."""

_log = logging.getLogger("evenmesh.generator.triton")

_QUEUE_FULL: Final = re.compile(r"exceeds maximum queue size|maximum queue size", re.IGNORECASE)
_OUT_OF_MEMORY: Final = re.compile(r"out of memory|memoryerror|bad_alloc|failed to allocate", re.IGNORECASE)
_NOT_HEALTHY: Final = re.compile(r"stub process .*not healthy|failed to (?:send|get).*stub", re.IGNORECASE)
_NOT_LOADED: Final = re.compile(r"not at ready state|has no available versions|not ready", re.IGNORECASE)
_STOPPING: Final = re.compile(r"server is (?:stopping|exiting)|stopped accepting", re.IGNORECASE)
_TOO_LONG: Final = re.compile(r"longer than the maximum model length|max_model_len", re.IGNORECASE)
"""Words of vLLM."""
_UNKNOWN: Final = re.compile(r"unknown model.*not found", re.IGNORECASE)


class _TritonUnavailable(Unavailable):
    def __init__(self, message: str) -> None:
        super().__init__(REASON, message)
        self.retry_after_s = RETRY_S


class ModelProcessGone(_TritonUnavailable):
    """UNAVAILABLE: the model's process is dead or stopped, though Triton calls the model ready."""

    def __init__(self, model: str) -> None:
        super().__init__(f"the process of {model} at the Triton server is dead or stopped")


class ServerGone(_TritonUnavailable):
    """UNAVAILABLE: the Triton server cannot be reached, or is stopping."""


class ModelUnavailable(_TritonUnavailable):
    """UNAVAILABLE: the server does not offer the model now."""


class PromptTooLong(InvalidField):
    """INVALID_ARGUMENT: the model cannot read a prompt of this length."""

    def __init__(self, model: str) -> None:
        super().__init__("question", f"makes a prompt that {model} finds too long")


class TritonFault(Exception):  # noqa: N818 - never leaves this service
    """A Triton error without a better name; it leaves the service as an incident."""


def from_triton(error: InferenceServerException | grpc.RpcError, model: str) -> MeshError:
    """Return the error of a call in this mesh's terms, and log Triton's message.

    Args:
        model: Triton's name of the model that was asked.
    """
    code, text = _code_and_text(error)
    own = read_error(text)
    if own is not None:
        return own
    mapped = _mapped(code, text, model)
    if mapped is None:
        return to_mesh_error(TritonFault(f"{model}: {code.name if code else 'no status'}: {text}"))
    # The health monitor logs an outage once; this line is for each call that meets it.
    level = logging.DEBUG if isinstance(mapped, Unavailable) else logging.WARNING
    _log.log(
        level, "triton failed a call", extra={"model": model, "reason": mapped.reason, "said": text[:500]}
    )
    return mapped


def server_message(error: InferenceServerException | grpc.RpcError) -> str:
    """Return the server's message in one line, for operators."""
    return " ".join(_code_and_text(error)[1].split())[:500]


def _mapped(code: grpc.StatusCode | None, text: str, model: str) -> MeshError | None:
    # A stream reports Triton's errors as text, without their code.
    if _NOT_HEALTHY.search(text):
        return ModelProcessGone(model)
    if _TOO_LONG.search(text):
        return PromptTooLong(model)
    if _QUEUE_FULL.search(text):
        return Overloaded(f"the queue of {model} at the Triton server is full", RETRY_S)
    if _OUT_OF_MEMORY.search(text):
        return restored(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "OUT_OF_MEMORY",
            f"{model} ran out of memory at the Triton server; a smaller request may fit",
        )
    if _UNKNOWN.search(text):
        return NotFound("model", f"the Triton server has no model {model}")
    if _NOT_LOADED.search(text) or _STOPPING.search(text):
        return ModelUnavailable(f"{model} is not loaded at the Triton server")
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return ServerGone("the Triton server cannot be reached")
        case grpc.StatusCode.CANCELLED:
            return ServerGone("the Triton server ended the call")
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"{model} did not answer in time")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return restored(code, "MESSAGE_TOO_LARGE", f"a message to or from {model} is over the size limit")
        case grpc.StatusCode.NOT_FOUND:
            return NotFound("model", f"the Triton server has no model {model}")
    return None


def _code_and_text(error: InferenceServerException | grpc.RpcError) -> tuple[grpc.StatusCode | None, str]:
    if isinstance(error, InferenceServerException):
        status = (error.status() or "").removeprefix("StatusCode.")
        return grpc.StatusCode.__members__.get(status), error.message() or ""
    code = getattr(error, "code", None)
    details = getattr(error, "details", None)
    return (code() if callable(code) else None), str((details() if callable(details) else "") or "")
