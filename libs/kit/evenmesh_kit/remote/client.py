"""One client of model servers: JSON requests and event streams over HTTP, with every failure mapped.

Nothing is followed, guessed or cut short in silence: see :mod:`evenmesh_kit.remote.errors`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import httpx
from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind

from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, MeshError, Overloaded
from evenmesh_kit.compute.tenant_places import TenantPlaces
from evenmesh_kit.remote.api_key import ApiKeyError, ApiKeyFile
from evenmesh_kit.remote.endpoints import Endpoint, EndpointPool
from evenmesh_kit.remote.errors import (
    ConnectionBroken,
    MalformedReply,
    ReplyTooLarge,
    ServerUnavailable,
    from_status,
)
from evenmesh_kit.remote.events import EventReader
from evenmesh_kit.remote.options import RemoteOptionError, RemoteOptions
from evenmesh_kit.telemetry.recorder import inject_context
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Attributes, Spans

MARGIN_S: Final = 0.02
"""What the service keeps of a deadline for its own answer. Seconds."""

_ERROR_BYTES: Final = 16 * 1024
"""Most bytes that are read of a reply that is an error."""
_END: Final = "[DONE]"
"""Data of the event that ends a stream."""
_END_S: Final = 0.05
"""How long the end of a reply whose last event has come is waited for. Seconds."""
_AT_ONCE_BYTES: Final = 32 * 1024
"""Largest reply that is parsed on the event loop, which takes less than a millisecond."""
_log = logging.getLogger("evenmesh.kit.remote")


@dataclass(frozen=True, slots=True)
class Checked:
    """What one endpoint answered to a check: JSON, and why it is of no use."""

    reply: Any
    error: MeshError | None = None


class RemoteClient:
    """Calls one of several servers that answer alike. For one event loop; close it.

    A request goes to the healthy endpoint with the fewest running ones. One that fails before anything of it
    was read is tried once more, at another endpoint where there is one; where a server has too many requests,
    at another healthy one. Cancelling a call closes its
    connection at once, by which a server notices. Requests of several tenants begin in turns, and none holds
    more than its share of the places.

    Attributes:
        places: those for running requests.

    Args:
        options: where the servers are, and how they are called.
        spans: makes a span of each request; None makes none.

    Raises:
        RemoteOptionError: a file of the options cannot be used, or an address is not of HTTP.
    """

    SCHEMES: ClassVar[tuple[str, ...]] = ("http", "https")
    """Schemes of the addresses that this client calls."""

    def __init__(self, options: RemoteOptions, spans: Spans | None = None) -> None:
        for url in options.urls:
            if urlsplit(url).scheme not in self.SCHEMES:
                raise RemoteOptionError(
                    "urls", f"{url!r} must begin with {' or '.join(f'{one}://' for one in self.SCHEMES)} here"
                )
        self.options = options
        self._spans = spans or Spans(Telemetry.disabled())
        try:
            self._key = None if options.api_key_file is None else ApiKeyFile(options.api_key_file)
        except ApiKeyError as error:
            raise RemoteOptionError("api_key_file", str(error)) from None
        if options.sends_key_in_the_clear:
            _log.warning("the key goes to a model server without TLS: use https:// or grpcs:// addresses")
        self._pool = EndpointPool(options.urls, options.rest_s)
        self.places = TenantPlaces(
            options.in_flight, share=options.tenant_share, where="the model server", margin_s=MARGIN_S
        )
        self._http = httpx.AsyncClient(
            verify=options.tls(),
            trust_env=options.proxies,
            follow_redirects=False,
            # Deadlines and the idle limit are kept here, for each piece of a reply.
            timeout=httpx.Timeout(None, connect=options.connect_s),
            limits=httpx.Limits(
                max_connections=None,
                max_keepalive_connections=options.in_flight,
                keepalive_expiry=options.keep_alive_s,
            ),
        )

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the servers."""
        return self._pool.endpoints

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def post(self, path: str, body: Mapping[str, Any], *, deadline: Deadline) -> Any:
        """Send JSON and return the JSON of the reply.

        Args:
            path: appended to the base URL, such as ``/rerank``.
            body: what is sent.
            deadline: the caller's.

        Raises:
            FailedPrecondition: the key is refused (REMOTE_KEY_REFUSED), the path or model is not there
                (REMOTE_NOT_FOUND), the server redirects (REMOTE_REDIRECTED) or refuses (REMOTE_REFUSED).
            Rejected: INVALID_ARGUMENT, the server rejects what the request asks for.
            Overloaded: the server has too many requests.
            DeadlineExceeded: the caller's deadline passed.
            ServerUnavailable: no server answers, or not as it should; see
                :mod:`evenmesh_kit.remote.errors`.
        """
        content = _encoded(body)
        async with self.places.hold(deadline):
            first: Endpoint | None = None
            while True:
                endpoint = self._pool.choose(other_than=first)
                try:
                    return await self._one_json(endpoint, path, content, deadline)
                except (ServerUnavailable, Overloaded) as error:
                    if not self._goes_on(error, endpoint, first):
                        raise
                    first = endpoint

    async def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        deadline: Deadline,
        needs_end: bool = True,
    ) -> AsyncGenerator[str, None]:
        """Send JSON and return the data of each server-sent event until ``[DONE]``; closing it ends the call.

        Args:
            path: appended to the base URL.
            body: what is sent.
            deadline: the caller's.
            needs_end: whether a reply that ends without ``[DONE]`` was cut.

        Raises:
            ServerUnavailable: REMOTE_CUT_STREAM, the reply ended before its end.
            MeshError: as of :meth:`post`.
        """
        content = _encoded(body)
        async with self.places.hold(deadline):
            first: Endpoint | None = None
            while True:
                endpoint, begun = self._pool.choose(other_than=first), False
                try:
                    found = self._events(endpoint, path, content, deadline, needs_end=needs_end)
                    async with aclosing(found) as events:
                        async for event in events:
                            begun = True
                            yield event
                    return
                except (ServerUnavailable, Overloaded) as error:
                    if not self._goes_on(error, endpoint, first) or begun:
                        raise
                    first = endpoint

    async def check(
        self,
        path: str,
        *,
        deadline: Deadline,
        accept: Callable[[Any], MeshError | None] = lambda _: None,
        tolerate: Callable[[MeshError], bool] = lambda _: False,
        rest_s: float | None = None,
    ) -> list[Checked]:
        """Return what each endpoint answers to GET of a path; all are asked at once, resting ones too.

        Args:
            path: appended to the base URL.
            deadline: of this check; an endpoint that does not answer in time rests.
            accept: returns why an endpoint of this answer is of no use; None where it is.
            tolerate: returns whether an endpoint that fails so is of use, such as one without this path.
            rest_s: how long a useless endpoint rests; longer than until the next check. None: as long as one
                that failed. Seconds, [0, inf).
        """

        async def asked(endpoint: Endpoint) -> Checked:
            reply, error = None, None
            try:
                reply = await self._one_json(endpoint, path, None, deadline, heals=False)
                error = accept(reply)
            except MeshError as raised:
                error = raised
            if error is None or tolerate(error):
                endpoint.answered()
            else:
                self._pool.rest(endpoint, error.message, rest_s)
            return Checked(reply, error)

        return list(await asyncio.gather(*map(asked, self._pool.endpoints)))

    def _goes_on(
        self, error: ServerUnavailable | Overloaded, endpoint: Endpoint, first: Endpoint | None
    ) -> bool:
        """Return whether a failed request is tried once more; a lone server only on a new connection."""
        if isinstance(error, Overloaded):
            self._pool.overloaded(endpoint, error)
            others = (one for one in self._pool.endpoints if one is not endpoint)
            return first is None and any(one.healthy for one in others)
        several = len(self._pool.endpoints) > 1
        return first is None and error.elsewhere and (several or isinstance(error, ConnectionBroken))

    async def _one_json(
        self, endpoint: Endpoint, path: str, content: bytes | None, deadline: Deadline, *, heals: bool = True
    ) -> Any:
        """Return the JSON that one endpoint answers to a POST, or a GET where there is no content."""
        media = "application/json"
        async with self._reply(endpoint, path, content, deadline, media, heals=heals) as pieces:
            body = b"".join([piece async for piece in pieces])
        try:
            if len(body) <= _AT_ONCE_BYTES:
                return parse_json(body)
            return await asyncio.to_thread(parse_json, body)
        except (ValueError, RecursionError):
            raise MalformedReply("the model server's reply is not JSON") from None

    async def _events(
        self,
        endpoint: Endpoint,
        path: str,
        content: bytes,
        deadline: Deadline,
        *,
        needs_end: bool,
    ) -> AsyncGenerator[str, None]:
        reader = EventReader()
        async with self._reply(endpoint, path, content, deadline, "text/event-stream") as pieces:
            async for piece in pieces:
                for event in reader.feed(piece):
                    if event == _END:
                        await _finish(pieces)
                        return
                    yield event
            if needs_end:
                raise ServerUnavailable("REMOTE_CUT_STREAM", "the model server ended a stream before its end")

    @asynccontextmanager
    async def _reply(
        self,
        endpoint: Endpoint,
        path: str,
        content: bytes | None,
        deadline: Deadline,
        media: str,
        *,
        heals: bool = True,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and return the pieces of its reply; raise what a reply that is no success means.

        Unless it ``heals``, a success leaves an endpoint that rests at rest.
        """
        url, method = endpoint.url + path, "GET" if content is None else "POST"
        with self._pool.using(endpoint), self._span(endpoint, method, path) as span:
            secret = "" if self._key is None else self._key.key().reveal()
            request = self._http.build_request(
                method, url, content=content, headers=_headers(media, secret, content is not None)
            )
            response = await self._within(self._http.send(request, stream=True), deadline)
            try:
                span.set_attribute("http.response.status_code", response.status_code)
                pieces = self._pieces(response, deadline)
                if not 200 <= response.status_code < 300:
                    raise await self._failure(response, pieces, secret)
                if heals:
                    endpoint.answered()
                sent_as = response.headers.get("content-encoding", "identity")
                if sent_as != "identity":
                    raise MalformedReply("the model server compressed its reply, though it was asked not to")
                yield pieces
            finally:
                await response.aclose()

    async def _failure(
        self, response: httpx.Response, pieces: AsyncIterator[bytes], secret: str
    ) -> MeshError:
        body = b""
        try:
            async for piece in pieces:
                body += piece
                if len(body) >= _ERROR_BYTES:
                    break
        except ServerUnavailable:
            pass  # the status says enough
        error = from_status(
            response.status_code,
            body[:_ERROR_BYTES],
            response.headers.get("retry-after"),
            key_setting=self.options.key_setting,
            urls_setting=self.options.urls_setting,
            secret=secret,
        )
        _log.info(
            "model server refused a call",
            extra={
                "server": response.url.netloc.decode(),
                "status": response.status_code,
                "reason": error.reason,
            },
        )
        return error

    async def _pieces(self, response: httpx.Response, deadline: Deadline) -> AsyncIterator[bytes]:
        most, size = self.options.reply_bytes, 0
        said = response.headers.get("content-length", "")
        if said.isdecimal() and int(said[:19]) > most:
            raise ReplyTooLarge(most)
        raw = response.aiter_raw()
        while True:
            piece = await self._within(anext(raw, None), deadline, replying=True)
            if piece is None:
                return
            size += len(piece)
            if size > most:
                raise ReplyTooLarge(most)
            yield piece

    async def _within(self, step: Any, deadline: Deadline, *, replying: bool = False) -> Any:
        """Wait for one step of a request, until the deadline or as long as a server may be silent."""
        try:
            left_s = deadline.budget(margin_s=MARGIN_S)
        except DeadlineExceeded:
            step.close()
            raise
        idle_s = self.options.idle_s
        try:
            async with asyncio.timeout(min(left_s, idle_s)):
                return await step
        except TimeoutError:
            if left_s <= idle_s:
                raise DeadlineExceeded("the model server did not answer in time") from None
            raise ServerUnavailable(
                "REMOTE_SILENT", f"the model server was silent for {idle_s:g} s"
            ) from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError):
            raise ServerUnavailable("REMOTE_UNAVAILABLE", "the model server cannot be reached") from None
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError) as error:
            if replying:
                raise ServerUnavailable(
                    "REMOTE_CUT_STREAM", "the model server closed the connection within its reply"
                ) from None
            if isinstance(error, httpx.RemoteProtocolError) and not _closed(error):
                raise MalformedReply("the model server does not speak HTTP") from None
            raise ConnectionBroken(
                "REMOTE_UNAVAILABLE", "the model server closed the connection before it replied"
            ) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            _log.warning("request to a model server failed: %s", type(error).__name__)
            raise ServerUnavailable("REMOTE_UNAVAILABLE", "the model server cannot be called") from None

    def _span(self, endpoint: Endpoint, method: str, path: str) -> Any:
        def asked() -> Attributes:
            return {"http.request.method": method, "url.path": path, **endpoint.address}

        return self._spans.within(f"{method} {path}", asked, kind=SpanKind.CLIENT)


async def _finish(pieces: AsyncIterator[bytes]) -> None:
    """Read the end of a reply, so that its connection can be used again; a server may leave it open."""
    with suppress(TimeoutError, MeshError):
        async with asyncio.timeout(_END_S):
            async for _ in pieces:
                pass


def _headers(media: str, secret: str, with_body: bool) -> dict[str, str]:
    headers = dict(inject_context(otel_context.get_current()))
    # Not compressed, so that its size is bounded before anything is unpacked.
    headers |= {"accept": media, "accept-encoding": "identity", "user-agent": "evenmesh"}
    if with_body:
        headers["content-type"] = "application/json"
    if secret:
        headers["authorization"] = f"Bearer {secret}"
    return headers


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode(errors="replace")


def parse_json(body: bytes | str) -> Any:
    """Return what a JSON text says.

    Raises:
        ValueError: it is not JSON, which has no NaN and no infinity.
        RecursionError: it is nested too deeply.
    """

    def refused(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(body, parse_constant=refused)


def _closed(error: httpx.RemoteProtocolError) -> bool:
    """Return whether the server closed the connection, by what httpcore says of it."""
    return "disconnected" in str(error) or "closed" in str(error)
