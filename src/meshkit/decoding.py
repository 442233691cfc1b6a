"""Answers of other services that are no messages: an error, and not None where an answer should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import grpc

from meshkit.errors import MeshError


class Garbled:
    """Stands for an answer that cannot be decoded: whatever is asked of it raises.

    gRPC for asyncio hands out None in its place, in which the next line of a caller trips.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise MeshError(
            grpc.StatusCode.INTERNAL,
            "UPSTREAM_ERROR",
            "a service this call needs said what cannot be understood",
        )


class DecodingChannel(grpc.aio.Channel):
    """A channel whose answers are messages, or :class:`Garbled`.

    Args:
        channel: makes the calls.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def close(self, grace: float | None = None) -> None:
        await self._channel.close(grace)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._channel.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._channel.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._channel.channel_ready()

    def unary_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._channel.unary_unary(method, *_decoding(args, kwargs), **kwargs)

    def unary_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._channel.unary_stream(method, *_decoding(args, kwargs), **kwargs)

    def stream_unary(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._channel.stream_unary(method, *_decoding(args, kwargs), **kwargs)

    def stream_stream(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._channel.stream_stream(method, *_decoding(args, kwargs), **kwargs)


def _decoding(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of a method, its deserializer guarded; stubs give it by name, others perhaps by place."""
    if kwargs.get("response_deserializer") is not None:
        kwargs["response_deserializer"] = _guarded(kwargs["response_deserializer"])
    if len(args) > 1 and args[1] is not None:
        return args[0], _guarded(args[1]), *args[2:]
    return args


def _guarded(decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def guarded(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception:  # noqa: BLE001 - whatever a deserializer trips over, the answer cannot be read
            return Garbled()

    return guarded
