"""The asyncio channel to a service: follows renewed certificates and rejects undecodable responses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Self

import grpc

from evenmesh.wire.certificates import Certificates, Material
from evenmesh.wire.errors import FailedPrecondition, MeshError

CERTIFICATE_CHECK_S: Final = 5.0
"""Least time between two checks of the certificate files. Seconds."""

_LAST_CALLS_S: Final = 3600.0


class UndecodableResponse:
    """Stand in for a response that cannot be decoded, and raise INTERNAL when a field of it is read.

    gRPC for asyncio would hand out None, on which the caller fails one line later with an AttributeError.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MeshError(
            grpc.StatusCode.INTERNAL,
            "UPSTREAM_ERROR",
            "a service this call needs sent a response that cannot be decoded",
        )


def _multi_callable(kind: str) -> Callable[..., Any]:
    """Return the channel's method for one kind of call, such as ``unary_unary``."""

    def make(
        self: MeshChannel,
        method: str,
        request_serializer: Callable[[Any], bytes] | None = None,
        response_deserializer: Callable[[bytes], Any] | None = None,
        **options: Any,
    ) -> Any:
        decode = None if response_deserializer is None else _checked(response_deserializer)
        return self.multi_callable(kind, method, request_serializer, decode, options)

    return make


class MeshChannel(grpc.aio.Channel):
    """A channel that reconnects when its certificates change, and checks every response.

    It belongs to the event loop of its first call, so that it may be made before a loop runs.
    A call checks the certificate files at most every 5 s. Running calls end on the connection they began on.
    gRPC alone would keep the first certificate until it expires, and then fail every handshake. A response
    that cannot be decoded becomes an :class:`UndecodableResponse`.

    Args:
        connect: opens a channel with the given certificates; None for plain text.
        certificates: what this side presents and trusts; None for plain text.
    """

    def __init__(
        self, connect: Callable[[Material | None], grpc.aio.Channel], certificates: Certificates | None
    ) -> None:
        self._connect = connect
        self._certificates = certificates
        self._material = None if certificates is None else certificates.material
        self._channel: grpc.aio.Channel | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._checked_at = time.monotonic()
        self._closing: set[asyncio.Task[None]] = set()

    unary_unary = _multi_callable("unary_unary")
    unary_stream = _multi_callable("unary_stream")
    stream_unary = _multi_callable("stream_unary")
    stream_stream = _multi_callable("stream_stream")

    def multi_callable(self, kind: str, *args: Any) -> Any:
        """Return a method that calls through whichever connection is current at the time of the call."""
        *positional, options = args
        made: tuple[grpc.aio.Channel | None, Any] = (None, None)

        def call(*call_args: Any, **call_kwargs: Any) -> Any:
            nonlocal made
            channel = self._current()
            if made[0] is not channel:
                made = (channel, getattr(channel, kind)(*positional, **options))
            return made[1](*call_args, **call_kwargs)

        return call

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        for task in self._closing:
            task.cancel()
        if self._channel is not None:
            await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel_ready()

    def _current(self) -> grpc.aio.Channel:
        """Return the connection of now; open it in the event loop of the first call.

        Raises:
            FailedPrecondition: another event loop runs than that of the first call.
            grpc.aio.UsageError: it was closed before the first call.
        """
        loop = asyncio.get_running_loop()
        if self._channel is None:
            if self._closed:
                raise grpc.aio.UsageError("Channel is closed.")
            self._channel, self._loop = self._connect(self._material), loop
        elif loop is not self._loop:
            raise FailedPrecondition(
                "OTHER_EVENT_LOOP",
                "this client was first used in another event loop: open one in each, such as within the "
                "coroutine that asyncio.run runs",
            )
        now = time.monotonic()
        if self._certificates is None or now - self._checked_at < CERTIFICATE_CHECK_S:
            return self._channel
        self._checked_at = now
        material = self._certificates.material
        if material is not self._material:
            self._material = material
            before, self._channel = self._channel, self._connect(material)
            task = asyncio.ensure_future(before.close(_LAST_CALLS_S))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return self._channel


def _checked(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def checked(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception:  # noqa: BLE001 - whatever a deserializer raises, the response cannot be read
            return UndecodableResponse()

    return checked
