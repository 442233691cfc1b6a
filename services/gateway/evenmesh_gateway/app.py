"""The application: every route, and what all of them pass."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import cache
from importlib.util import find_spec

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from evenmesh_gateway.agents.http import AgentRoutes
from evenmesh_gateway.calls import CallReader
from evenmesh_gateway.connect_rpc import ConnectRoutes
from evenmesh_gateway.console.routes import ConsoleRoutes
from evenmesh_gateway.forwarding import Forwarder
from evenmesh_gateway.http.memory import BodyMemory, ReplyMemory
from evenmesh_gateway.http.problems import HttpProblem, problem_response
from evenmesh_gateway.http.web import GatewayRoute, GatewayRouter, Problems, Records
from evenmesh_gateway.json_messages import JsonMessages
from evenmesh_gateway.openai.errors import error_of
from evenmesh_gateway.openai.routes import OpenAiRoutes
from evenmesh_gateway.openai.routes import paths as openai_paths
from evenmesh_gateway.openapi import document
from evenmesh_gateway.rest import Rest
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_gateway.uploads.described import paths as upload_paths
from evenmesh_gateway.uploads.described import schemas as upload_schemas
from evenmesh_gateway.uploads.routes import UploadRoutes
from evenmesh_gateway.upstreams import Upstreams
from evenmesh_kit.admission.metrics import AdmissionMetrics
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.compute.tenant_pool import TenantPool
from evenmesh_kit.security.listener import ListenerSecurity
from evenmesh_kit.telemetry.setup import Telemetry


class Gateway:
    """The gateway of one process. Create it in a running event loop.

    Args:
        settings: the settings.
        telemetry: records requests, and calls to the services.

    Raises:
        ServerStartError: a file of the certificates cannot be used.
        ListenerSecurityError: a file of the authentication cannot be used.
    """

    def __init__(self, settings: GatewaySettings, telemetry: Telemetry) -> None:
        self._draining = False
        self._stack = AsyncExitStack()
        security = ListenerSecurity.of(settings)
        for file, source in security.watched.items():
            telemetry.reloads.watch(file, source)
        self._upstreams = Upstreams(settings, telemetry)
        self._pool = TenantPool(settings.compute_threads, "gateway")
        memory = Admission(
            settings.max_decoded_bytes,
            "bytes of requests",
            queue_s=settings.queue_s,
            share=settings.tenant_share,
        )
        replies = Admission(
            settings.max_reply_bytes,
            "bytes of replies",
            queue_s=settings.queue_s,
            share=settings.tenant_share,
        )
        call_reader = CallReader(settings, security.authentication, forwards_trace=not telemetry.enabled)
        self._forwarder = forwarder = Forwarder(self._upstreams, settings)
        messages = JsonMessages(self._pool, memory)
        self._agents = AgentRoutes(call_reader, forwarder) if find_spec("mcp") is not None else None
        self._uploads = UploadRoutes(settings, call_reader, forwarder) if settings.documents else None
        uploads = () if self._uploads is None else self._uploads.admissions
        AdmissionMetrics(telemetry, memory, replies, *uploads)
        self._openapi = _described(documents=self._uploads is not None)
        app: ASGIApp = GatewayRouter(
            [
                GatewayRoute("/healthz", self._live, methods=["GET"]),
                GatewayRoute("/readyz", self._ready, methods=["GET"]),
                GatewayRoute("/openapi.json", self._described, methods=["GET"]),
                *OpenAiRoutes(settings, call_reader, forwarder, messages).routes(),
                *(() if self._uploads is None else self._uploads.routes()),
                *Rest(settings, call_reader, forwarder, messages).routes(),
                *ConnectRoutes(settings, call_reader, forwarder, messages).routes(),
                *(() if self._agents is None else (self._agents.route(),)),
                *(self._console(settings, call_reader) if settings.console else ()),
            ]
        )
        # Not Starlette's application: its layers would see each event of a stream, and do nothing here.
        app = ReplyMemory(BodyMemory(app, memory), replies, knows_callers=call_reader.knows_callers)
        app = Problems(app, settings, adds=error_of)
        if settings.cors_origins:
            app = _cors(app, settings)
        self.app: ASGIApp = Records(app, telemetry.tracer, telemetry.meter)

    def _console(self, settings: GatewaySettings, call_reader: CallReader) -> list[GatewayRoute]:
        reads = self._uploads is not None and self._uploads.reads
        return ConsoleRoutes(settings, call_reader, self._upstreams, documents=reads).routes()

    async def start(self) -> None:
        """Begin to answer agents, and connect to the services."""
        self._upstreams.connect()
        if self._agents is not None:
            await self._stack.enter_async_context(self._agents.running())

    def drain(self) -> None:
        """Say no to who asks whether the gateway is ready; requests are still answered."""
        self._draining = True

    async def close(self) -> None:
        """Close the channels, after the last request."""
        await self._stack.aclose()
        await self._upstreams.close()
        await asyncio.to_thread(self._pool.close)
        if self._uploads is not None:
            await self._uploads.close()

    async def _live(self, _: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def _ready(self, _: Request) -> Response:
        if self._draining:
            return problem_response(HttpProblem(503, "SHUTTING_DOWN", "the gateway is shutting down"))
        return JSONResponse({"status": "ready"})

    async def _described(self, _: Request) -> Response:
        return self._openapi


@cache
def _described(*, documents: bool) -> Response:
    """Return the OpenAPI document, with or without uploads."""
    paths, schemas = openai_paths()
    if documents:
        paths, schemas = {**paths, **upload_paths()}, {**schemas, **upload_schemas()}
    return JSONResponse(document(paths, schemas))


def _cors(app: ASGIApp, settings: GatewaySettings) -> ASGIApp:
    """Return what lets pages of the configured origins call; no cookies, as credentials are headers."""
    return CORSMiddleware(
        app,
        allow_origins=settings.cors_origins,
        allow_methods=["GET", "POST"],
        # Each client has headers of its own, such as X-User-Agent of gRPC-Web and X-Stainless-* of OpenAI's.
        allow_headers=["*"],
        expose_headers=["Retry-After", "Grpc-Status", "Grpc-Message", "Grpc-Status-Details-Bin"],
        max_age=600,
    )
