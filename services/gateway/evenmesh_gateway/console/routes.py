"""Serve the console at ``/console/``, and say who calls and which services answer."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from evenmesh_gateway.calls import CallReader, peer_of
from evenmesh_gateway.console.assets import INDEX, read
from evenmesh_gateway.console.monitoring import Monitoring
from evenmesh_gateway.http.problems import HttpProblem
from evenmesh_gateway.http.web import GatewayRoute
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_gateway.upstreams import Upstreams
from evenmesh_kit.security.caller import Role, current

PATH: Final = "/console/"
_NO_STORE: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class ConsoleRoutes:
    """Serves the console.

    Args:
        settings: how people sign in, and where metrics and traces are.
        call_reader: reads who calls.
        upstreams: the services that are asked for their health.
        documents: whether documents may be uploaded here.
    """

    def __init__(
        self, settings: GatewaySettings, call_reader: CallReader, upstreams: Upstreams, *, documents: bool
    ) -> None:
        self._call_reader = call_reader
        self._documents = documents
        self._upstreams = upstreams
        self._files = read(settings.oidc_issuer)
        self._sign_in = _sign_in(settings)
        self._traces = settings.traces
        self._monitoring = Monitoring(settings.prometheus) if settings.prometheus else None

    def routes(self) -> list[GatewayRoute]:
        """Return the routes; those of JSON come before the files'."""
        return [
            GatewayRoute("/", self._to_console, methods=["GET"]),
            GatewayRoute(PATH.rstrip("/"), self._to_console, methods=["GET"]),
            GatewayRoute(f"{PATH}sign-in", self._how_to_sign_in, methods=["GET"]),
            GatewayRoute(f"{PATH}session", self._session, methods=["GET"]),
            GatewayRoute(f"{PATH}health", self._health, methods=["GET"]),
            GatewayRoute(f"{PATH}{{path:path}}", self._file, methods=["GET"]),
        ]

    async def _to_console(self, _: Request) -> Response:
        return RedirectResponse(PATH)

    async def _file(self, request: Request) -> Response:
        file = self._files.get(request.path_params["path"] or INDEX)
        if file is None:
            raise HttpProblem(404, "NO_ROUTE", f"the console has no such file; it is at {PATH}")
        if request.headers.get("if-none-match") == file.headers["ETag"]:
            return Response(status_code=304, headers=dict(file.headers))
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.compressed, headers={**file.headers, "Content-Encoding": "gzip"})
        return Response(file.body, headers=dict(file.headers))

    async def _how_to_sign_in(self, _: Request) -> Response:
        """Say which issuer signs people in; everybody may know, as those who ask are not signed in yet."""
        return JSONResponse({"provider": self._sign_in}, headers=_NO_STORE)

    async def _session(self, request: Request) -> Response:
        """Say who calls and which roles that gives, so that the console offers no more."""
        await self._call_reader.call(request.headers, peer=peer_of(request))
        caller = current()
        return JSONResponse(
            {
                "known": self._call_reader.knows_callers,
                "name": caller.name,
                "tenant": caller.tenant,
                "roles": sorted(role for role in caller.roles if role is not Role.SERVICE),
                "documents": self._documents,
                "traces": self._traces,
            },
            headers=_NO_STORE,
        )

    async def _health(self, request: Request) -> Response:
        """Say which services serve and how fast they said so; to admins also what Prometheus knows."""
        await self._call_reader.call(request.headers, peer=peer_of(request))
        sees = self._monitoring is not None and Role.ADMIN in current().roles
        found, seen = await asyncio.gather(
            self._upstreams.health(), self._monitoring.read() if sees and self._monitoring else _nothing()
        )
        services = [{"name": name, **health} for name, health in found.items()]
        return JSONResponse({"services": services, "monitoring": seen}, headers=_NO_STORE)


async def _nothing() -> None:
    """Return None, where there is nothing to read."""


def _sign_in(settings: GatewaySettings) -> dict[str, str] | None:
    """Return how the page signs people in with an issuer; None where keys and tokens are pasted."""
    if not settings.oidc_issuer:
        return None
    return {
        "issuer": settings.oidc_issuer,
        "clientId": settings.oidc_client_id,
        "scopes": settings.oidc_scopes,
        "audience": settings.oidc_audience,
    }
