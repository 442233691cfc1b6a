"""A Triton server that answers what a test wants, with a model of the vLLM backend's tensors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Final, Self

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODEL: Final = "written"
_INPUTS: Final = (
    "text_input",
    "sampling_parameters",
    "stream",
    "exclude_input_in_output",
    "return_finish_reason",
    "return_cumulative_logprob",
    "return_num_output_tokens",
)


class ScriptedTriton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Serves the model :data:`MODEL` on one loopback address; a context manager around its run.

    Its answer to every question is ``name``, in two pieces.

    Args:
        name: what it answers.
        address: ``ip:port``.
        credentials: of TLS; None speaks plainly.

    Attributes:
        asked: requests so far, probes among them.
        goes_on: answers begin while it is set.
        ends: second pieces come while it is set.
    """

    def __init__(self, name: str, address: str, credentials: grpc.ServerCredentials | None = None) -> None:
        self._credentials = credentials
        self.name = name
        self.address = address
        self.asked = 0
        self.under_way = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.ends = asyncio.Event()
        self.ends.set()
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(self, self._server)
        if self._credentials is None:
            self._server.add_insecure_port(self.address)
        else:
            self._server.add_secure_port(self.address, self._credentials)
        await self._server.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.die()

    async def die(self) -> None:
        """Break every connection, and listen no more."""
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer that it lives."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer its name."""
        return service_pb2.ServerMetadataResponse(name=self.name)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer that its model is ready."""
        found = service_pb2.RepositoryIndexResponse()
        found.models.add(name=MODEL, version="1", state="READY")
        return found

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer which inputs the model has."""
        found = service_pb2.ModelConfigResponse()
        found.config.name, found.config.backend = MODEL, "vllm"
        for one in _INPUTS:
            found.config.input.add(name=one)
        return found

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Answer each request in two pieces."""
        async for request in requests:
            self.asked += 1
            self.under_way += 1
            try:
                await self.goes_on.wait()
                yield _piece(request.id, self.name[:1], "None")
                await self.ends.wait()
                yield _piece(request.id, self.name[1:], "stop")
            finally:
                self.under_way -= 1


def free_port(*hosts: str) -> int:
    """Return a port that is free at each of these addresses."""
    while True:
        bound = [socket.socket() for _ in hosts]
        try:
            bound[0].bind((hosts[0], 0))
            port = int(bound[0].getsockname()[1])
            for one, host in zip(bound[1:], hosts[1:], strict=True):
                one.bind((host, port))
        except OSError:
            continue
        else:
            return port
        finally:
            for one in bound:
                one.close()


def _piece(id_: str, text: str, finish: str) -> Any:
    found = service_pb2.ModelStreamInferResponse()
    answer = found.infer_response
    answer.model_name, answer.model_version, answer.id = MODEL, "1", id_
    for name, datatype, raw in (
        ("text_output", "BYTES", _text(text)),
        ("finish_reason", "BYTES", _text(finish)),
        ("cumulative_logprob", "FP32", np.float32(-1).tobytes()),
        ("num_output_tokens", "UINT32", np.uint32(1).tobytes()),
    ):
        answer.outputs.add(name=name, datatype=datatype, shape=[1])
        answer.raw_output_contents.append(raw)
    return found


def _text(text: str) -> bytes:
    return len(text).to_bytes(4, "little") + text.encode()
