"""What Triton and gRPC say, as this mesh tells it. The texts are those of tritonserver 2.51 and grpcio 1.85."""

from __future__ import annotations

import json

import grpc
import pytest
from tritonclient.utils import InferenceServerException

from evenmesh.wire.errors import DeadlineExceeded, Internal, InvalidField, MeshError, NotFound, Overloaded
from evenmesh_generator.backends.triton.errors import (
    REASON,
    ModelProcessGone,
    ModelUnavailable,
    PromptTooLong,
    ServerGone,
    from_triton,
    server_message,
)

STREAMED = {
    "Stub process 'toy_0_0' is not healthy.": ModelProcessGone,
    "Request for unknown model: 'toy' is not found": NotFound,
    "Request for unknown model: 'toy' has no available versions": ModelUnavailable,
    "Request for unknown model: 'toy' version 1 is not at ready state": ModelUnavailable,
    "Server is stopping, scheduler for model has stopped accepting new inference requests": ModelUnavailable,
    "[request id: r1] Exceeds maximum queue size": Overloaded,
    "Error generating stream: The decoder prompt (length 1200) is longer than the maximum model length of 1024. "
    "Make sure that `max_model_len` is no smaller than the number of text tokens.": PromptTooLong,
    "[request id: r1] inference input 'x' data-type is 'INT64', but model 'toy' expects 'INT32'": Internal,
    "[request id: r1] unexpected shape for input 'x' for model 'toy'. Expected [1], got [2]. ": Internal,
    "unexpected inference input 'zzz' for model 'toy'": Internal,
    "Failed to process the request(s) for model instance 'toy_0_0', message: KeyError: 'x'": Internal,
}


@pytest.mark.parametrize("text", STREAMED)
def test_what_a_stream_says(text: str) -> None:
    error = from_triton(InferenceServerException(msg=text), "toy")
    assert type(error) is STREAMED[text]
    if error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED):
        assert error.retry_after_s
    if error.code is grpc.StatusCode.UNAVAILABLE:
        assert error.reason == REASON
    assert "r1" not in str(error)


STATUSES = {
    grpc.StatusCode.UNAVAILABLE: (ServerGone, REASON),
    grpc.StatusCode.CANCELLED: (ServerGone, REASON),
    grpc.StatusCode.DEADLINE_EXCEEDED: (DeadlineExceeded, "DEADLINE_EXCEEDED"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (MeshError, "MESSAGE_TOO_LARGE"),
    grpc.StatusCode.NOT_FOUND: (NotFound, "NOT_FOUND"),
    grpc.StatusCode.INTERNAL: (Internal, "INTERNAL"),
    grpc.StatusCode.UNKNOWN: (Internal, "INTERNAL"),
}


@pytest.mark.parametrize("code", STATUSES)
def test_what_a_status_says(code: grpc.StatusCode) -> None:
    error = from_triton(InferenceServerException(msg="ipv4:10.0.0.1: secret", status=str(code)), "toy")
    assert (type(error), error.reason) == STATUSES[code]
    assert "secret" not in str(error)


@pytest.mark.parametrize("text", ["CUDA out of memory. Tried to allocate", "std::bad_alloc", "MemoryError"])
def test_out_of_memory_is_no_incident(text: str) -> None:
    error = from_triton(InferenceServerException(msg=text), "toy")
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY")
    assert error.retry_after_s is None


def test_an_error_of_the_models_process_is_the_one_it_raised() -> None:
    reported = {
        "code": "INVALID_ARGUMENT",
        "reason": "INVALID_FIELD",
        "message": "is out of memory of its past",
    }
    text = "in ensemble: " + json.dumps(reported | {"field": "question", "retry_after_s": None})
    error = from_triton(InferenceServerException(msg=text, status="StatusCode.UNKNOWN"), "toy")
    assert isinstance(error, InvalidField)
    assert (error.field, error.message) == ("question", reported["message"])


def test_operators_read_all_of_it_in_one_line() -> None:
    error = InferenceServerException(msg="load failed:\n  RuntimeError\n", status="StatusCode.INTERNAL")
    assert server_message(error) == "load failed: RuntimeError"
