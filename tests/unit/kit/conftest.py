"""A real server with one method of each kind, which tests give whatever behaviour they need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from pydantic_settings import SettingsConfigDict

from evenmesh.common.v1 import common_pb2, method_options_pb2
from evenmesh.common.v1.common_pb2 import ItemError
from evenmesh.wire.channel import connect
from evenmesh_kit.rpc.server import MeshServer, Registration, Service
from evenmesh_kit.security import caller as callers
from evenmesh_kit.settings import ServiceSettings
from evenmesh_kit.telemetry.setup import Telemetry
from tests.support.lifecycle import Idle

SERVICE = "evenmesh.test.v1.EchoService"
KINDS = ("unary", "server_stream", "client_stream", "bidi")


def _state_the_contract() -> None:
    """Adds the echo service to the protos that this process knows: methods of one request are retryable."""
    file = FileDescriptorProto(
        name="evenmesh/test/v1/echo_service.proto", package="evenmesh.test.v1", syntax="proto3"
    )
    file.dependency.extend([common_pb2.DESCRIPTOR.name, method_options_pb2.DESCRIPTOR.name])
    service = file.service.add(name="EchoService")
    for kind in KINDS:
        streams = kind in ("client_stream", "bidi")
        method = service.method.add(
            name=kind,
            input_type=".evenmesh.common.v1.ItemError",
            output_type=".evenmesh.common.v1.ItemError",
            client_streaming=streams,
            server_streaming=kind in ("server_stream", "bidi"),
        )
        method.options.Extensions[method_options_pb2.facts].retryable = not streams
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())


_state_the_contract()


class EchoSettings(ServiceSettings):
    """Settings of the service under test."""

    model_config = SettingsConfigDict(env_prefix="EVENMESH_ECHO_")


async def _unary(request: ItemError, context: Any) -> ItemError:
    return request


async def _server_stream(request: ItemError, context: Any) -> AsyncIterator[ItemError]:
    for index in range(3):
        yield ItemError(message=f"{request.message}{index}")


async def _client_stream(requests: AsyncIterator[ItemError], context: Any) -> ItemError:
    return ItemError(message=",".join([request.message async for request in requests]))


async def _bidi(requests: AsyncIterator[ItemError], context: Any) -> AsyncIterator[ItemError]:
    async for request in requests:
        yield request


def registration(name: str = SERVICE, **behaviours: Any) -> Registration:
    """An echo service with some behaviours replaced."""
    kinds = {
        "unary": (grpc.unary_unary_rpc_method_handler, _unary),
        "server_stream": (grpc.unary_stream_rpc_method_handler, _server_stream),
        "client_stream": (grpc.stream_unary_rpc_method_handler, _client_stream),
        "bidi": (grpc.stream_stream_rpc_method_handler, _bidi),
    }
    handlers = {
        method: make(
            behaviours.get(method, behaviour),
            request_deserializer=ItemError.FromString,
            response_serializer=ItemError.SerializeToString,
        )
        for method, (make, behaviour) in kinds.items()
    }

    def add(servicer: object, server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))

    return Registration(add, object(), name)


@dataclass(frozen=True)
class Echo:
    """Calls the four methods over a channel."""

    channel: Any
    service: str = SERVICE

    def method(self, name: str, *, raw: bool = False) -> Any:
        """One method as gRPC's own callable; raw: it takes bytes."""
        make = {
            "unary": self.channel.unary_unary,
            "server_stream": self.channel.unary_stream,
            "client_stream": self.channel.stream_unary,
            "bidi": self.channel.stream_stream,
        }[name]
        return make(
            f"/{self.service}/{name}",
            request_serializer=None if raw else ItemError.SerializeToString,
            response_deserializer=ItemError.FromString,
        )

    async def __call__(
        self,
        name: str,
        *messages: str,
        timeout: float | None = 20,
        raw: bytes | None = None,
    ) -> list[str]:
        """Calls one method to its end and returns the messages it answered."""
        requests: list[Any] = (
            [raw] if raw is not None else [ItemError(message=text) for text in messages or ("a",)]
        )
        call = self.method(name, raw=raw is not None)(
            requests if name in ("client_stream", "bidi") else requests[0], timeout=timeout
        )
        if name in ("server_stream", "bidi"):
            return [response.message async for response in call]
        return [(await call).message]


Serve = Callable[..., Awaitable[MeshServer]]
Call = Callable[..., Echo]


@pytest.fixture
async def serve(tmp_path: Any) -> AsyncIterator[Serve]:
    """Starts echo servers that end with the test: behaviours by method name, settings by field name."""
    async with AsyncExitStack() as stack:

        async def start(
            *,
            telemetry: Telemetry | None = None,
            service: Service | None = None,
            settings: dict[str, Any] | None = None,
            **behaviours: Any,
        ) -> MeshServer:
            service = service or Idle()
            service.registrations = (registration(**behaviours),)
            server = MeshServer(
                "echo",
                EchoSettings(**{"home": tmp_path, "grace_s": 5, **(settings or {})}),
                service,
                telemetry=telemetry or Telemetry.disabled(),
            )
            return await stack.enter_async_context(server)

        yield start


@pytest.fixture
async def call() -> AsyncIterator[Call]:
    """Opens channels that end with the test; without retries unless a test asks for them."""
    async with AsyncExitStack() as stack:
        opened: list[grpc.aio.Channel] = []
        stack.push_async_callback(_close, opened)

        def open_channel(target: MeshServer | str, **options: Any) -> Echo:
            address = target.address if isinstance(target, MeshServer) else target
            opened.append(connect(address, **{"service": SERVICE, "retry": False, **options}))
            return Echo(opened[-1])

        yield open_channel


async def _close(channels: list[grpc.aio.Channel]) -> None:
    for channel in channels:
        await channel.close()


@pytest.fixture(autouse=True)
def nobody_calls() -> Iterator[None]:
    """Let no test without a task of its own leave its caller to the next."""
    yield
    callers.enter(callers.ANYONE)
