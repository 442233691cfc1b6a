"""Call text-embeddings-inference by its gRPC interface, as :class:`RemoteClient` calls the HTTP one.

Requests and replies have the shape of TEI's JSON, so that an encoder or reranker does not see the difference.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind

from evenmesh.wire.certificates import CertificateError, Certificates, channel_credentials
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, FailedPrecondition, MeshError, Overloaded
from evenmesh_kit.remote import tei_pb2 as pb
from evenmesh_kit.remote.client import MARGIN_S, RemoteClient
from evenmesh_kit.remote.endpoints import Endpoint
from evenmesh_kit.remote.errors import (
    RETRY_S,
    MalformedReply,
    Rejected,
    ReplyTooLarge,
    ServerUnavailable,
    said_in,
)
from evenmesh_kit.remote.options import RemoteOptionError, RemoteOptions
from evenmesh_kit.telemetry.recorder import inject_context
from evenmesh_kit.telemetry.spans import Attributes, Spans

_KINDS: Final = {
    pb.MODEL_TYPE_EMBEDDING: "embedding",
    pb.MODEL_TYPE_CLASSIFIER: "classifier",
    pb.MODEL_TYPE_RERANKER: "reranker",
}
_REJECTED: Final = frozenset({grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE})
_KEY_REFUSED: Final = frozenset({grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED})
_NOT_THERE: Final = frozenset({grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND})
_BAD_REQUEST: Final = 400
"""HTTP status of what TEI rejects so by gRPC."""


class TeiGrpcClient(RemoteClient):
    """Calls one of several TEI servers by gRPC: ``/info``, ``/embed`` and ``/rerank`` are its only paths.

    A request of several texts to ``/embed`` is as many calls at a time, as TEI embeds one text by each.

    Args:
        options: where the servers are, with ``grpc://`` or, for TLS, ``grpcs://`` addresses.
        spans: makes a span of each request; None makes none.

    Raises:
        RemoteOptionError: a file of the options cannot be used, or an address is not of gRPC.
    """

    SCHEMES = ("grpc", "grpcs")

    def __init__(self, options: RemoteOptions, spans: Spans | None = None) -> None:
        super().__init__(options, spans)
        try:
            certificates = Certificates(options.certificate_file, options.key_file, options.ca_file)
            self._credentials = channel_credentials(certificates.material)
        except CertificateError as error:
            raise RemoteOptionError("certificate_file", str(error)) from None
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def close(self) -> None:
        """Close every connection."""
        for channel in self._channels.values():
            await channel.close()
        await super().close()

    async def _one_json(
        self, endpoint: Endpoint, path: str, content: bytes | None, deadline: Deadline, *, heals: bool = True
    ) -> Any:
        secret = "" if self._key is None else self._key.key().reveal()
        idle = deadline.remaining() - MARGIN_S > self.options.idle_s
        with self._pool.using(endpoint), self._rpc_span(endpoint, path):
            try:
                reply = await self._asked(endpoint, path, content, deadline, secret)
            except grpc.aio.AioRpcError as error:
                raise self._failure_of(error, secret, idle=idle) from None
            if heals:
                endpoint.answered()
            return reply

    async def _asked(
        self, endpoint: Endpoint, path: str, content: bytes | None, deadline: Deadline, secret: str
    ) -> Any:
        """Return the reply of a path in the shape of TEI's JSON."""
        body = {} if content is None else json.loads(content)
        if path == "/info":
            return _described(await self._call(endpoint, "Info", pb.InfoRequest(), deadline, secret))
        if path == "/embed":
            asked = [
                pb.EmbedRequest(inputs=text, truncate=body["truncate"], normalize=body["normalize"])
                for text in body["inputs"]
            ]
            return await self._embedded(endpoint, asked, deadline, secret)
        if path == "/rerank":
            reply = await self._call(endpoint, "Rerank", pb.RerankRequest(**body), deadline, secret)
            return [{"index": one.index, "score": one.score} for one in reply.ranks]
        raise FailedPrecondition("REMOTE_NOT_FOUND", f"text-embeddings-inference has no {path} by gRPC")

    async def _embedded(
        self, endpoint: Endpoint, asked: Sequence[pb.EmbedRequest], deadline: Deadline, secret: str
    ) -> list[list[float]]:
        try:
            async with asyncio.TaskGroup() as group:
                calls = [
                    group.create_task(self._call(endpoint, "Embed", one, deadline, secret)) for one in asked
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        replies = [call.result() for call in calls]
        # Each call bounds its own reply; together they may not be larger than one by HTTP.
        if sum(reply.ByteSize() for reply in replies) > self.options.reply_bytes:
            raise ReplyTooLarge(self.options.reply_bytes)
        return [list(reply.embeddings) for reply in replies]

    async def _call(self, endpoint: Endpoint, name: str, asked: Any, deadline: Deadline, secret: str) -> Any:
        """Call the one method of a service, which has its name."""
        answer: Any = {"Info": pb.InfoResponse, "Embed": pb.EmbedResponse, "Rerank": pb.RerankResponse}[name]
        method: Any = self._channel(endpoint).unary_unary(
            f"/tei.v1.{name}/{name}", request_serializer=type(asked).SerializeToString
        )
        metadata = list(inject_context(otel_context.get_current()).items())
        if secret:
            metadata.append(("authorization", f"Bearer {secret}"))
        timeout_s = min(deadline.budget(margin_s=MARGIN_S), self.options.idle_s)
        reply = await method(asked, timeout=timeout_s, metadata=metadata)
        try:
            return answer.FromString(reply)  # gRPC for asyncio would return None for what it cannot decode
        except DecodeError:
            raise MalformedReply("the model server's reply is not one of TEI") from None

    def _channel(self, endpoint: Endpoint) -> grpc.aio.Channel:
        """Return the channel to a server, which connects again by itself."""
        if (found := self._channels.get(endpoint.url)) is not None:
            return found
        most, connect_ms = self.options.reply_bytes, max(1, int(1000 * self.options.connect_s))
        options = (
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", int(self.options.proxies)),
            # A server that failed rests by the options, not by gRPC's own time, which grows to two minutes.
            ("grpc.min_reconnect_backoff_ms", connect_ms),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # Clients with the same options would share a connection.
            ("grpc.use_local_subchannel_pool", 1),
        )
        if endpoint.url.startswith("grpcs://"):
            channel = grpc.aio.secure_channel(endpoint.name, self._credentials, options)
        else:
            channel = grpc.aio.insecure_channel(endpoint.name, options)
        self._channels[endpoint.url] = channel
        return channel

    def _failure_of(self, error: grpc.aio.AioRpcError, secret: str, *, idle: bool) -> MeshError:
        """Return what a failed call means; ``idle``: its time ended before the caller's."""
        code, details = error.code(), error.details() or ""
        named = code.name
        said, _ = said_in(details.encode(errors="replace"), secret)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            if idle:
                return ServerUnavailable(
                    "REMOTE_SILENT", f"the model server was silent for {self.options.idle_s:g} s"
                )
            return DeadlineExceeded("the model server did not answer in time")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            if "larger than max" in details:
                return ReplyTooLarge(self.options.reply_bytes)
            return Overloaded("the model server has too many requests", RETRY_S)
        if code in _KEY_REFUSED:
            return FailedPrecondition(
                "REMOTE_KEY_REFUSED",
                f"the model server refuses this service's key ({named}); {self.options.key_setting} must "
                "name a file with a key that it accepts",
            )
        if code in _NOT_THERE:
            return FailedPrecondition(
                "REMOTE_NOT_FOUND",
                f"the server does not speak TEI's gRPC ({named}); check {self.options.urls_setting}",
            )
        if code in _REJECTED:
            return Rejected(_BAD_REQUEST, said or named)
        if code is grpc.StatusCode.UNAVAILABLE:
            return ServerUnavailable("REMOTE_UNAVAILABLE", "the model server cannot be reached, or is unwell")
        # FAILED_PRECONDITION too: so says TEI that its model failed, or is of another kind.
        return ServerUnavailable("REMOTE_UNAVAILABLE", f"the model server fails ({named})", rests=False)

    def _rpc_span(self, endpoint: Endpoint, path: str) -> Any:
        name = path.removeprefix("/").capitalize()

        def asked() -> Attributes:
            return {
                "rpc.system": "grpc",
                "rpc.service": f"tei.v1.{name}",
                "rpc.method": name,
                **endpoint.address,
            }

        return self._spans.within(f"tei.v1.{name}/{name}", asked, kind=SpanKind.CLIENT)


def _described(info: pb.InfoResponse) -> dict[str, Any]:
    """Return what a server says of its model as its ``/info`` does by HTTP."""
    return {
        "model_id": info.model_id,
        "model_sha": info.model_sha if info.HasField("model_sha") else None,
        "model_dtype": info.model_dtype,
        "model_type": {_KINDS.get(info.model_type, "unknown"): {}},
        "max_input_length": info.max_input_length,
        "max_client_batch_size": info.max_client_batch_size,
    }
