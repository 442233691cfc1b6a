"""What Triton's Python backend gives to models: ``triton_python_backend_utils``, as far as it is used.

The module itself exists only inside the server's stub process, so it is handed in and typed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from evenmesh_generator.triton.tensors import Tensor


class BackendTensor(Protocol):
    """A named array."""

    def name(self) -> str: ...

    def as_numpy(self) -> Tensor: ...


class TritonSender(Protocol):
    """Answers one request of a decoupled model, from any thread."""

    def send(self, response: object = ..., flags: int = ...) -> None: ...

    def is_cancelled(self) -> bool: ...


class BackendRequest(Protocol):
    """One request."""

    def inputs(self) -> Sequence[BackendTensor]: ...

    def get_response_sender(self) -> TritonSender: ...


class Metric(Protocol):
    """One time series."""

    def increment(self, value: float) -> None: ...

    def set(self, value: float) -> None: ...

    def observe(self, value: float) -> None: ...


class MetricFamily(Protocol):
    """Time series of one name. Gone from the metrics as soon as nobody holds it."""

    def Metric(self, labels: Mapping[str, str], buckets: Sequence[float] = ...) -> Metric:  # noqa: N802
        ...


class Backend(Protocol):
    """The module."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL: int
    MetricFamily: Any
    TritonError: Any
    InferenceRequest: Any
    InferenceResponse: Any
    Tensor: Any
    Logger: Any


def read_inputs(request: BackendRequest) -> dict[str, Tensor]:
    """Return the inputs of a request that were sent, by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}


def response(backend: Backend, outputs: Mapping[str, Tensor]) -> object:
    """Return a response with these outputs."""
    return backend.InferenceResponse([backend.Tensor(name, array) for name, array in outputs.items()])
