"""One connection to a Triton server, shared by all models of a generator."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import grpc
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from tritonclient.grpc import MAX_GRPC_MESSAGE_SIZE
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from evenmesh.wire.channel import with_scheme
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_generator.backends.triton.errors import ServerGone, from_triton, server_message
from evenmesh_generator.backends.triton.wire import decode, encode
from evenmesh_generator.triton.tensors import Tensor
from evenmesh_kit.telemetry.recorder import inject_context
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Attributes, Spans

READY: Final = "READY"
"""State of a model version that answers."""

_SERVICE: Final = "inference.GRPCInferenceService"

LOADING: Final = "LOADING"
"""State of one that soon will."""


class LoadError(Exception):
    """Raised when Triton does not load or unload a model; its message in one line, for operators."""


@dataclass(frozen=True, slots=True)
class VersionState:
    """A version of a model in the server's repository.

    Attributes:
        version: its folder; empty for a model that was never loaded.
        state: ``READY``, ``LOADING``, ``UNLOADING``, ``UNAVAILABLE``, or empty if it was never loaded.
    """

    version: str
    state: str


class TritonClient:
    """Calls a Triton server; every error is a :class:`~evenmesh.wire.errors.MeshError`. For one event loop.

    Args:
        target: ``host:port`` of the server's gRPC endpoint.
        credentials: TLS credentials; None: no TLS.
        spans: makes a span of each request to a model; None makes none.
        name: whom the server's certificate must name, where that is not the host of ``target``.
    """

    def __init__(
        self,
        target: str,
        credentials: grpc.ChannelCredentials | None = None,
        spans: Spans | None = None,
        name: str = "",
    ) -> None:
        self.target = target
        self._spans = spans or Spans(Telemetry.disabled())
        self._client = InferenceServerClient(
            with_scheme(target),
            creds=credentials,
            channel_args=[
                # The service has limited what came in, and models limit what they write.
                ("grpc.max_send_message_length", MAX_GRPC_MESSAGE_SIZE),
                ("grpc.max_receive_message_length", MAX_GRPC_MESSAGE_SIZE),
                # Triton counts pings of a quiet connection as abuse unless they are five minutes apart, so
                # gRPC's own limit of pings without data stays; probes send data all the time.
                ("grpc.keepalive_time_ms", 30_000),
                ("grpc.keepalive_timeout_ms", 10_000),
                # A server that was restarted is found again within a second.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.min_reconnect_backoff_ms", 1_000),
                ("grpc.max_reconnect_backoff_ms", 500),
                *([("grpc.ssl_target_name_override", name)] if name and credentials else []),
            ],
        )

    async def close(self) -> None:
        """Close the connection and every call on it."""
        await self._client.close()

    async def stream(
        self, model: str, inputs: Mapping[str, Tensor], *, timeout_s: float
    ) -> AsyncGenerator[dict[str, Tensor], None]:
        """Return the outputs of each response to a request of a decoupled model; closing it ends the call.

        Raises:
            MeshError: see :mod:`evenmesh_generator.backends.triton.errors`.
            MalformedReplyError: what came are no tensors.
        """
        encoded = encode(inputs)
        id_ = _request_id()

        async def one_request() -> AsyncIterator[dict[str, Any]]:
            yield {"model_name": model, "inputs": encoded, "request_id": id_}

        received = 0
        with self._span("ModelStreamInfer", model, inputs, id_) as span:
            responses = self._client.stream_infer(one_request(), stream_timeout=timeout_s, headers=_headers())
            try:
                async for result, error in responses:
                    if error is not None:
                        raise from_triton(error, model)
                    received += 1
                    yield decode(result)
            except grpc.RpcError as error:
                raise from_triton(error, model) from None
            finally:
                span.set_attribute("evenmesh.triton.responses", received)
                responses.cancel()

    async def infer(self, model: str, inputs: Mapping[str, Tensor], *, timeout_s: float) -> dict[str, Tensor]:
        """Return the outputs of the one response to a request.

        Raises:
            MeshError: see :mod:`evenmesh_generator.backends.triton.errors`.
            MalformedReplyError: what came are no tensors.
        """
        encoded = encode(inputs)
        id_ = _request_id()
        with self._span("ModelInfer", model, inputs, id_):
            try:
                result = await self._client.infer(
                    model, encoded, request_id=id_, client_timeout=timeout_s, headers=_headers()
                )
                return decode(result)
            except InferenceServerException as error:
                raise from_triton(error, model) from None

    def _span(
        self, method: str, model: str, inputs: Mapping[str, Tensor], request_id: str
    ) -> AbstractContextManager[Span]:
        def asked() -> Attributes:
            host, _, port = self.target.rpartition(":")
            shape = next(iter(inputs.values())).shape if inputs else ()
            return {
                "rpc.system": "grpc",
                "rpc.service": _SERVICE,
                "rpc.method": method,
                "server.address": host.rpartition("/")[2] or self.target,
                "server.port": int(port) if port.isdigit() else None,
                "gen_ai.request.model": model,
                "evenmesh.triton.request.id": request_id,
                "evenmesh.triton.rows": int(shape[0]) if shape else 1,
            }

        return self._spans.within(f"{_SERVICE}/{method}", asked, kind=SpanKind.CLIENT)

    async def check_live(self, *, timeout_s: float) -> None:
        """Check that the server answers.

        Raises:
            ServerGone: it does not.
            DeadlineExceeded: not in time.
        """
        try:
            live = await self._client.is_server_live(client_timeout=timeout_s)
        except InferenceServerException as error:
            mapped = from_triton(error, "the server")
            if isinstance(mapped, DeadlineExceeded):
                raise mapped from None
            raise ServerGone("the Triton server cannot be reached") from None
        if not live:
            raise ServerGone("the Triton server says that it is not alive")

    async def server_name(self, *, timeout_s: float) -> str:
        """Return the server's name for itself (``--id``).

        Raises:
            MeshError: it does not say.
        """
        try:
            return str((await self._client.get_server_metadata(client_timeout=timeout_s)).name)
        except InferenceServerException as error:
            raise from_triton(error, "the server") from None

    async def repository(self, *, timeout_s: float) -> Mapping[str, Sequence[VersionState]]:
        """Return every model of the server's repository with its versions.

        Raises:
            MeshError: the server does not say.
        """
        try:
            index = await self._client.get_model_repository_index(client_timeout=timeout_s)
        except InferenceServerException as error:
            raise from_triton(error, "the repository") from None
        found: dict[str, list[VersionState]] = {}
        for one in index.models:
            found.setdefault(one.name, []).append(VersionState(one.version, one.state))
        return found

    async def max_batch_size(self, model: str, *, timeout_s: float) -> int:
        """Return the most rows of one request, [1, inf).

        Raises:
            MeshError: the model is not there.
        """
        return max(1, int((await self.config(model, timeout_s=timeout_s)).max_batch_size))

    async def config(self, model: str, *, timeout_s: float) -> ModelConfig:
        """Return a model's configuration, with what its backend has added.

        Raises:
            MeshError: the model is not there.
        """
        try:
            return (await self._client.get_model_config(model, client_timeout=timeout_s)).config
        except InferenceServerException as error:
            raise from_triton(error, model) from None

    async def load(self, model: str, *, timeout_s: float) -> None:
        """Load a model, or its changes; do nothing if it is loaded and unchanged.

        Raises:
            LoadError: the server will not, or cannot.
        """
        try:
            await self._client.load_model(model, client_timeout=timeout_s)
        except InferenceServerException as error:
            raise LoadError(server_message(error)) from None

    async def unload(self, model: str, *, timeout_s: float) -> None:
        """Unload a model; its running requests continue.

        Raises:
            LoadError: the server will not, or cannot.
        """
        try:
            await self._client.unload_model(model, client_timeout=timeout_s)
        except InferenceServerException as error:
            raise LoadError(server_message(error)) from None


def _request_id() -> str:
    return secrets.token_hex(8)


def _headers() -> dict[str, str] | None:
    """Return the trace context of a sampled span; the server traces every request that brings one."""
    if not trace.get_current_span().get_span_context().trace_flags.sampled:
        return None
    return dict(inject_context(otel_context.get_current())) or None
