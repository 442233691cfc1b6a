"""REST and JSON for every public method, by one mechanism: ``POST /v1/<package.Service>/<Method>``.

A request is JSON, or NDJSON where the method takes a stream; a reply is JSON, or server-sent events where the
method answers with a stream. Errors are problem details.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_gateway.calls import Call, CallReader, peer_of, unless_hung_up
from evenmesh_gateway.forwarding import Forwarder, Requests
from evenmesh_gateway.http import events
from evenmesh_gateway.http.bodies import (
    check_head,
    in_pieces,
    largest_json,
    read_body,
    read_lines,
    split_lines,
)
from evenmesh_gateway.http.problems import HttpProblem, problem_of
from evenmesh_gateway.http.web import GatewayRoute
from evenmesh_gateway.json_messages import JsonMessages
from evenmesh_gateway.methods import PublicMethod, public_methods
from evenmesh_gateway.settings import GatewaySettings

PREFIX: Final = "/v1"
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"


class Rest:
    """Serves the public methods as REST.

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
                f"{PREFIX}{method.path}",
                self._endpoint(method),
                methods=["POST"],
                name=method.path,
                passes=method.streams_requests and not method.streams_replies,
            )
            for method in public_methods().values()
        ]

    def _endpoint(self, method: PublicMethod) -> object:
        async def endpoint(request: Request) -> Response:
            return await self._answer(method, request)

        return endpoint

    async def _answer(self, method: PublicMethod, request: Request) -> Response:
        line = largest_json(method, self._settings.max_body_bytes)
        most = line
        if method.streams_requests:
            replies = method.streams_replies
            most = self._settings.max_body_bytes if replies else self._settings.max_upload_bytes
        check_head(request, most, NDJSON if method.streams_requests else JSON)
        call = await self._call_reader.call(request.headers, method, peer=peer_of(request))
        if method.streams_requests and not method.streams_replies:
            lines = read_lines(request, line, most, call.deadline, self._messages.admitted)
            requests = self._requests(method, lines)
            reply = await self._forwarder.reply(method, requests, call)
            return await self._json(method, reply)
        # A stream of replies begins before the requests end, and one connection is read by one reader: so a
        # method that has both is given its requests once all of them are here.
        body = await read_body(request, most, call.deadline)
        if not method.streams_replies:
            message = await self._messages.read(method.request, body)
            reply = await unless_hung_up(
                request, self._forwarder.reply(method, message.SerializeToString(), call)
            )
            return await self._json(method, reply)
        sent: Requests
        if method.streams_requests:
            sent = self._requests(method, split_lines(in_pieces(body), line))
        else:
            sent = (await self._messages.read(method.request, body)).SerializeToString()
        return events.response(self._events(method, sent, call))

    async def _json(self, method: PublicMethod, reply: bytes) -> Response:
        return Response(await self._messages.write(method.reply, reply), media_type=JSON)

    async def _requests(self, method: PublicMethod, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the messages of the lines; name the line at fault."""
        number = 0
        async for line in lines:
            number += 1
            try:
                message = await self._messages.read(method.request, line)
            except InvalidField as error:
                raise InvalidField(f"line {number}: {error.field}", error.message) from None
            yield message.SerializeToString()

    async def _events(
        self, method: PublicMethod, request: Requests, call: Call
    ) -> AsyncGenerator[bytes, None]:
        """Yield the replies as events, then ``end``; an error after the first is the event ``error``."""
        began = False
        try:
            async with aclosing(self._forwarder.replies(method, request, call)) as replies:
                async for reply in replies:
                    yield events.event(await self._messages.write(method.reply, reply))
                    began = True
        except (MeshError, HttpProblem) as error:
            if not began:
                raise
            yield events.event(json.dumps(problem_of(error)).encode(), "error")
        else:
            yield events.event(b"{}", "end")
