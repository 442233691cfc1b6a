"""Connect and gRPC-Web for every public method: ``POST /<package.Service>/<Method>``.

Connect's official library speaks the protocols and knows nothing of the messages: bytes of protobuf pass as
they are, and JSON is converted as for REST.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from contextvars import ContextVar
from typing import Any, Final, TypeAlias, cast

import grpc
from connectrpc.code import Code
from connectrpc.codec import Codec
from connectrpc.compression.gzip import GzipCompression
from connectrpc.errors import ConnectError, ErrorDetail
from connectrpc.interceptor import MetadataInterceptor
from connectrpc.method import IdempotencyLevel, MethodInfo, StreamType
from connectrpc.request import RequestContext
from connectrpc.server import ConnectASGIApplication, Endpoint
from protobuf.wkt import Any as AnyMessage
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import MeshError
from evenmesh_gateway.calls import Call, CallReader
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.http.bodies import largest_json, timely
from evenmesh_gateway.http.memory import EXPANSION, FREE_BYTES, Admit, PieceMemory, expansion
from evenmesh_gateway.http.problems import UNSUPPORTED_TYPE, HttpProblem, headers_of
from evenmesh_gateway.http.web import GatewayRoute
from evenmesh_gateway.json_messages import JsonMessages
from evenmesh_gateway.methods import PublicMethod, public_methods
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_kit.rpc.statuses import to_status

Context: TypeAlias = RequestContext[Any, Any]

_CODES: Final[dict[grpc.StatusCode, Code]] = {
    code: Code.CANCELED if code is grpc.StatusCode.CANCELLED else Code[code.name]
    for code in grpc.StatusCode
    if code is not grpc.StatusCode.OK
}
_KINDS: Final = {
    (False, False): StreamType.UNARY,
    (False, True): StreamType.SERVER_STREAM,
    (True, False): StreamType.CLIENT_STREAM,
    (True, True): StreamType.BIDI_STREAM,
}
_HEAD_BYTES: Final = 5
_TO_ENTER_S: Final = 30.0
"""Longest wait for a body before it is known who calls. Seconds."""
_call: ContextVar[Call] = ContextVar("evenmesh_gateway_call")


class _Passing(Codec[bytes, Any]):
    """A codec that leaves messages encoded, so that they are read where the caller is known."""

    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name

    def encode(self, message: bytes) -> bytes:
        return message

    def decode(self, data: bytes | bytearray, message_class: type[Any]) -> bytes:
        return bytes(data)


class _CountedGzip(GzipCompression):
    """Gzip that expands as far as the memory of bodies counts, and no further.

    A body of zeros becomes a thousand times as large, on the event loop.
    """

    def decompress(self, data: bytes | bytearray | memoryview, read_max_bytes: int | None = None) -> bytes:
        most = FREE_BYTES + EXPANSION * len(data)
        if read_max_bytes is not None and read_max_bytes <= most:
            return super().decompress(data, read_max_bytes)
        try:
            return super().decompress(data, most)
        except ConnectError as error:
            raise ConnectError(
                Code.RESOURCE_EXHAUSTED,
                f"a message of {len(data):,} bytes becomes more than {most:,}: send it without compression",
            ) from error


class _Application(ConnectASGIApplication[None]):
    """The library's application, for one method."""

    @property
    def path(self) -> str:
        return "/"


class _Entering(MetadataInterceptor[None]):
    """Lets the caller in before the body is read."""

    def __init__(self, call_reader: CallReader, method: PublicMethod) -> None:
        self._call_reader = call_reader
        self._method = method

    async def on_start(self, ctx: Context) -> None:
        timeout_ms = ctx.timeout_ms
        try:
            call = await self._call_reader.call(
                dict(ctx.request_headers),
                self._method,
                peer=ctx.client_address or "",
                timeout_s=None if timeout_ms is None else max(0.001, timeout_ms / 1000),
            )
        except MeshError as error:
            raise _connect_error(error, ctx) from error
        _call.set(call)

    async def on_end(self, token: None, ctx: Context, error: Exception | None) -> None:
        pass


class ConnectRoutes:
    """Serves the public methods to Connect and gRPC-Web clients.

    Args:
        settings: bounds.
        call_reader: reads who calls.
        forwarder: makes the calls.
        messages: converts JSON.
    """

    def __init__(
        self, settings: GatewaySettings, call_reader: CallReader, forwarder: Forwarder, messages: JsonMessages
    ) -> None:
        self._settings = settings
        self._call_reader = call_reader
        self._forwarder = forwarder
        self._messages = messages

    def routes(self) -> list[GatewayRoute]:
        """Return a route for each method."""
        return [
            GatewayRoute(
                method.path,
                _OverHttp1(
                    self._application(method), self._messages.admitted if method.streams_requests else None
                ),
                name=f"connect:{method.path}",
                passes=method.streams_requests,
            )
            for method in public_methods().values()
        ]

    def _application(self, method: PublicMethod) -> _Application:
        endpoint = self._endpoint(method)
        return _Application(
            service=None,
            endpoints=lambda _: {method.path: endpoint},
            interceptors=[_Entering(self._call_reader, method)],
            read_max_bytes=largest_json(method, self._settings.max_body_bytes),
            codecs=[_Passing("proto"), _Passing("json")],
            compressions=[_CountedGzip()],
        )

    def _endpoint(self, method: PublicMethod) -> Any:
        info: MethodInfo[Any, Any] = MethodInfo(
            name=method.descriptor.name,
            service_name=method.service,
            input=method.request,
            output=method.reply,
            idempotency_level=IdempotencyLevel.UNKNOWN,
            stream_type=_KINDS[method.streams_requests, method.streams_replies],
        )

        async def read(data: bytes, ctx: Context) -> bytes:
            if not _is_json(ctx):
                return data
            return (await self._messages.read(method.request, data)).SerializeToString()

        async def requests(given: AsyncIterator[bytes], ctx: Context) -> AsyncIterator[bytes]:
            async for data in given:
                yield await read(data, ctx)

        async def written(reply: bytes, ctx: Context) -> bytes:
            return await self._messages.write(method.reply, reply) if _is_json(ctx) else reply

        async def one(given: Any, ctx: Context) -> bytes:
            try:
                sent = requests(given, ctx) if method.streams_requests else await read(given, ctx)
                return await written(await self._forwarder.reply(method, sent, _call.get()), ctx)
            except MeshError as error:
                raise _connect_error(error, ctx) from error

        async def many(given: Any, ctx: Context) -> AsyncGenerator[bytes, None]:
            try:
                sent = requests(given, ctx) if method.streams_requests else await read(given, ctx)
                async with aclosing(self._forwarder.replies(method, sent, _call.get())) as replies:
                    async for reply in replies:
                        yield await written(reply, ctx)
            except MeshError as error:
                raise _connect_error(error, ctx) from error

        kinds: dict[StreamType, Any] = {
            StreamType.UNARY: (Endpoint.unary, one),
            StreamType.CLIENT_STREAM: (Endpoint.client_stream, one),
            StreamType.SERVER_STREAM: (Endpoint.server_stream, many),
            StreamType.BIDI_STREAM: (Endpoint.bidi_stream, many),
        }
        make, function = kinds[info.stream_type]
        return make(info, function)


def _is_json(ctx: Context) -> bool:
    """Return whether the messages of a request, and so those of its response, are JSON."""
    return ctx.request_headers.get("content-type", "").partition(";")[0].strip().lower().endswith("json")


def _connect_error(error: MeshError, ctx: Context) -> ConnectError:
    """Return an error with the details that gRPC callers get, and ``Retry-After``."""
    for name, value in headers_of(error).items():
        ctx.response_headers[name] = value
    return _said_by_connect(error)


def _said_by_connect(error: MeshError) -> ConnectError:
    status = to_status(error)
    details = [ErrorDetail(AnyMessage(type_url=one.type_url, value=one.value)) for one in status.details]
    return ConnectError(_CODES[error.code], status.message, details)


class _OverHttp1:
    """The application, closed to gRPC itself, which needs HTTP/2: the services speak it.

    Args:
        application: answers.
        admit: holds memory of a message of a stream that is not whole yet; None for a single one, whose
            memory is that of its body.
    """

    def __init__(self, application: _Application, admit: Admit | None) -> None:
        self._application = application
        self._admit = admit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        media = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        if media == "application/grpc" or media.startswith("application/grpc+"):
            raise HttpProblem(
                UNSUPPORTED_TYPE,
                "UNSUPPORTED_TYPE",
                "this address speaks gRPC-Web, Connect and REST; call the service itself by gRPC",
            )

        begun = Deadline.after(_TO_ENTER_S)
        in_time = timely(receive, lambda: begun if (call := _call.get(None)) is None else call.deadline)

        envelopes, factor = _Envelopes(), expansion(scope)
        async with AsyncExitStack() as stack:
            memory = None
            if self._admit is not None:
                memory = await stack.enter_async_context(PieceMemory(self._admit))

            async def receiving() -> Message:
                try:
                    message = await in_time()
                    if memory is not None and message["type"] == "http.request":
                        await memory.hold(factor * envelopes.unfinished(message.get("body", b"")))
                except MeshError as error:  # the library would call others than its own unknown
                    raise _said_by_connect(error) from error
                return message

            await self._application(cast(Any, scope), cast(Any, receiving), cast(Any, send))


class _Envelopes:
    """The messages of a stream of Connect or gRPC-Web: each begins with a flag and four bytes of length."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0
        self._here = 0

    def unfinished(self, data: bytes) -> int:
        """Take more of the stream, and return how much is here of the message that is not whole. Bytes."""
        at = 0
        while at < len(data):
            if self._left == 0:
                part = data[at : at + _HEAD_BYTES - len(self._head)]
                at += len(part)
                self._head += part
                if len(self._head) == _HEAD_BYTES:
                    self._left = int.from_bytes(self._head[1:], "big")
                    self._head.clear()
                continue
            part_size = min(self._left, len(data) - at)
            at += part_size
            self._left -= part_size
            self._here = self._here + part_size if self._left else 0
        return self._here
