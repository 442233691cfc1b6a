"""A server with the gRPC interface of TEI around models of the test's own process; a real one can't be had here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from anyio.from_thread import start_blocking_portal

from evenmesh_kit.remote import tei_pb2 as pb
from tests.support.model_server import Embed, Score

Fault = Callable[[str, Any, grpc.aio.ServicerContext], Awaitable[bytes | None]]
"""Called with the name of each method, what was asked, and the call, which it may end; returns bytes to reply with."""


@dataclass
class TeiServer:
    """A running server, and what it was asked.

    Attributes:
        url: its address.
        asked: name of the method, message and metadata of each call.
        ended: how many calls ended without a reply.
        server: ends it.
    """

    url: str
    server: grpc.aio.Server
    asked: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    ended: int = 0


@asynccontextmanager
async def serving(
    *,
    embed: Embed | None = None,
    score: Score | None = None,
    model: str = "stand-in",
    fault: Fault | None = None,
    port: int = 0,
    credentials: grpc.ServerCredentials | None = None,
) -> AsyncIterator[TeiServer]:
    """Serve functions of texts; what there is no function for fails as TEI does with a model of another kind."""
    # A port of its own: with SO_REUSEPORT two servers of one test could share it.
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    bound = (
        server.add_insecure_port(f"127.0.0.1:{port}")
        if credentials is None
        else server.add_secure_port(f"127.0.0.1:{port}", credentials)
    )
    scheme, host = ("grpc", "127.0.0.1") if credentials is None else ("grpcs", "localhost")
    found = TeiServer(f"{scheme}://{host}:{bound}", server)

    async def info(_: pb.InfoRequest, __: grpc.aio.ServicerContext) -> pb.InfoResponse:
        kind = pb.MODEL_TYPE_EMBEDDING if embed is not None else pb.MODEL_TYPE_RERANKER
        return pb.InfoResponse(
            version="1.9.0",
            model_id=model,
            model_sha="1",
            model_dtype="float32",
            model_type=kind,
            max_input_length=256,
            max_client_batch_size=32,
        )

    async def embedded(asked: pb.EmbedRequest, call: grpc.aio.ServicerContext) -> pb.EmbedResponse:
        if embed is None:
            await call.abort(grpc.StatusCode.FAILED_PRECONDITION, "model is not an embedding model")
            raise RuntimeError
        return pb.EmbedResponse(embeddings=(await asyncio.to_thread(embed, [asked.inputs]))[0])

    async def ranked(asked: pb.RerankRequest, call: grpc.aio.ServicerContext) -> pb.RerankResponse:
        if score is None:
            await call.abort(grpc.StatusCode.FAILED_PRECONDITION, "model is not a re-ranker model")
            raise RuntimeError
        scores = await asyncio.to_thread(score, asked.query, list(asked.texts))
        ranks = [pb.Rank(index=at, score=one) for at, one in enumerate(scores)]
        return pb.RerankResponse(ranks=sorted(ranks, key=lambda rank: -rank.score))

    def handler(name: str, work: Callable[..., Awaitable[Any]], request: Any) -> grpc.GenericRpcHandler:
        async def called(asked: Any, call: grpc.aio.ServicerContext) -> Any:
            found.asked.append((name, asked, dict(call.invocation_metadata() or ())))
            try:
                said = None if fault is None else await fault(name, asked, call)
                return await work(asked, call) if said is None else said
            except BaseException:
                found.ended += 1
                raise

        method = grpc.unary_unary_rpc_method_handler(
            called,
            request_deserializer=request.FromString,
            response_serializer=lambda reply: (
                reply if isinstance(reply, bytes) else reply.SerializeToString()
            ),
        )
        return grpc.method_handlers_generic_handler(f"tei.v1.{name}", {name: method})

    server.add_generic_rpc_handlers(
        (
            handler("Info", info, pb.InfoRequest),
            handler("Embed", embedded, pb.EmbedRequest),
            handler("Rerank", ranked, pb.RerankRequest),
        )
    )
    await server.start()
    try:
        yield found
    finally:
        await server.stop(None)


@contextmanager
def in_thread(**given: Any) -> Iterator[TeiServer]:
    """Serve from a thread, for callers that wait in the test's own; takes what :func:`serving` does."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving(**given)) as server:
        yield server
