"""A stream of events: comments in silence, nothing after its end, and an end for what makes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from evenmesh_gateway.http import events
from evenmesh_gateway.http.web import GatewayRoute, GatewayRouter

SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}


class Client:
    """What a server is to an application: takes what is sent, and hangs up when a test says so."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.ended = False
        self.came = asyncio.Event()
        self.leaves = asyncio.Event()

    async def send(self, message: Any) -> None:
        assert not self.ended
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self.ended = not message["more_body"]
        self.came.set()

    async def receive(self) -> Any:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def until(self, body: bytes) -> None:
        while body not in self.bodies:
            self.came.clear()
            await self.came.wait()


async def test_comments_come_while_nothing_happens_and_none_after_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "_SILENCE_S", 0.001)
    client, goes_on = Client(), asyncio.Event()

    async def made() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await goes_on.wait()
        yield b"last"

    running = asyncio.create_task(events.response(made())(SCOPE, client.receive, client.send))
    await client.until(b": \n\n")
    goes_on.set()
    await running
    assert client.ended
    said = [one for one in client.bodies if one != b": \n\n"]
    assert said == [b"first", b"last", b""]
    assert client.bodies[-1] == b""


async def test_a_client_that_hangs_up_closes_what_makes_the_events() -> None:
    client, closed = Client(), asyncio.Event()

    async def made() -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            closed.set()

    running = asyncio.create_task(events.response(made())(SCOPE, client.receive, client.send))
    await client.until(b"first")
    client.leaves.set()
    await running
    assert closed.is_set()
    assert not client.ended


async def test_an_error_after_the_first_event_is_not_an_end() -> None:
    client = Client()

    async def made() -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await events.response(made())(SCOPE, client.receive, client.send)
    assert client.bodies == [b"first"]
    assert not client.ended


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/a", b"a"),
        ("POST", "/a", b"posted"),
        ("GET", "/b/c", b"pattern"),
        ("GET", "/d/e", b"before"),
        ("GET", "/d/f", b"after"),
    ],
)
async def test_the_first_route_that_matches_answers(method: str, path: str, body: bytes) -> None:
    def says(text: str) -> Any:
        async def answer(_: Request) -> Response:
            return PlainTextResponse(text)

        return answer

    router = GatewayRouter(
        [
            GatewayRoute("/a", says("a"), methods=["GET"]),
            GatewayRoute("/a", says("posted"), methods=["POST"]),
            GatewayRoute("/d/e", says("before"), methods=["GET"]),
            GatewayRoute("/b/{name:path}", says("pattern"), methods=["GET"]),
            GatewayRoute("/b/c", says("hidden"), methods=["GET"]),
            GatewayRoute("/d/{name}", says("after"), methods=["GET"]),
        ]
    )
    client = Client()

    async def send(message: Any) -> None:
        await client.send({"more_body": False, **message})

    await router({**SCOPE, "method": method, "path": path}, client.receive, send)
    assert client.bodies == [body]
