"""A channel that goes on with new certificates when the files change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, Self

import grpc

from meshkit.security.certificates import Certificates, Material

LOOK_EVERY_S: Final = 5.0
"""Least time between two looks at the files. Seconds."""
_LAST_CALLS_S: Final = 3600.0


class RenewedChannel(grpc.aio.Channel):
    """Looks at the certificates when a call is made, and connects anew where they are others.

    Calls that run end on the connection they began on. gRPC itself would go on with the certificate that the
    channel was made with until it has expired, and then with none that anybody takes.

    Args:
        certificates: what is shown and trusted.
        make: makes a channel with such material.
    """

    def __init__(self, certificates: Certificates, make: Callable[[Material], grpc.aio.Channel]) -> None:
        self._certificates = certificates
        self._make = make
        self._material = certificates.material
        self._channel = make(self._material)
        self._looked_at = time.monotonic()
        self._closing: set[asyncio.Task[None]] = set()

    def current(self) -> grpc.aio.Channel:
        """The channel for a call made now."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = now
            material = self._certificates.material
            if material is not self._material:
                self._material = material
                before, self._channel = self._channel, self._make(material)
                task = asyncio.ensure_future(before.close(_LAST_CALLS_S))
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
        return self._channel

    async def close(self, grace: float | None = None) -> None:
        for task in self._closing:
            task.cancel()
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self.current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self.current().channel_ready()

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._following("unary_unary", args, kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._following("unary_stream", args, kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._following("stream_unary", args, kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._following("stream_stream", args, kwargs)

    def _following(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A method of whichever channel is the current one when it is called."""
        made: list[Any] = [None, None]

        def call(*call_args: Any, **call_kwargs: Any) -> Any:
            channel = self.current()
            if made[0] is not channel:
                made[:] = [channel, getattr(channel, kind)(*args, **kwargs)]
            return made[1](*call_args, **call_kwargs)

        return call
