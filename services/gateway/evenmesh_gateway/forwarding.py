"""Forward calls to the services: bytes in and out, cancelled with their request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from typing import Any, Final, TypeAlias, cast

import grpc

from evenmesh.resending import Resending
from evenmesh.wire.call_ends import CallEnd
from evenmesh.wire.errors import MeshError, Overloaded, Unavailable, Unimplemented, code_of, status_of
from evenmesh_gateway.calls import Call
from evenmesh_gateway.methods import PublicMethod
from evenmesh_gateway.settings import GatewaySettings
from evenmesh_gateway.upstreams import Upstreams
from evenmesh_kit.admission.queue import Admission
from evenmesh_kit.rpc.statuses import to_mesh_error

Requests: TypeAlias = bytes | AsyncIterable[bytes]
"""A serialized request, or a stream of them."""
_CONNECTIONS_PER_WAITING: Final = 4
"""Connections for each call that may wait for a restart: the rest stays for calls of other services."""


class Forwarder:
    """Forwards calls; whoever cancels or closes one here cancels it in its service.

    A call that may be sent again waits for a service that is being restarted, as a call of the SDK does.

    Args:
        upstreams: the services.
        settings: bounds the calls that wait at a time, by connections and by tenant. Others fail at once.
    """

    def __init__(self, upstreams: Upstreams, settings: GatewaySettings) -> None:
        self._upstreams = upstreams
        most = settings.max_connections // _CONNECTIONS_PER_WAITING
        self._waiting = Admission(most, "waiting calls", share=settings.tenant_share)

    async def reply(self, method: PublicMethod, request: Requests, call: Call) -> bytes:
        """Return the one reply of a method.

        Args:
            method: the method.
            request: the request, or the stream of them.
            call: credential and deadline.

        Raises:
            MeshError: the call failed.
            Exception: what the stream of requests raises; the call is cancelled then.
        """
        resending = Resending(call.deadline.remaining())
        while True:
            running = self._begin(method, request, call)
            end = CallEnd(running)
            try:
                if not isinstance(request, bytes):
                    await _write(running, request)
                reply = cast(bytes, await running)
            except grpc.RpcError as exc:
                cause, error = exc, self._error(end.error(exc) or exc, method)
            else:
                self._upstreams.restarts.reached(method.upstream)
                return reply
            finally:
                running.cancel()
            if not await self._again(resending, error, method, request):
                raise error from cause

    async def replies(
        self,
        method: PublicMethod,
        request: Requests,
        call: Call,
        *,
        forget: Callable[[], None] | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the replies of a method; closing the generator cancels the call.

        Args:
            method: the method.
            request: the request, or the stream of them.
            call: credential and deadline.
            forget: forgets the replies so far: where the connection breaks between them, all of them follow
                again, once. None where they have been sent on.

        Raises:
            MeshError: the call failed.
            Exception: what the stream of requests raises; the call is cancelled then.
        """
        resending = Resending(call.deadline.remaining(), whole=forget is not None)
        while True:
            running = self._begin(method, request, call)
            end = CallEnd(running)
            writing = None
            if not isinstance(request, bytes):
                writing = asyncio.create_task(_write(running, request))
            try:
                async for reply in running:
                    resending.begun = True
                    self._upstreams.restarts.reached(method.upstream)
                    yield reply
                if writing is not None:
                    await writing
                return
            except (grpc.RpcError, asyncio.CancelledError) as exc:
                if writing is not None and writing.done() and not writing.cancelled():
                    writing.result()  # why the call was cancelled
                if not isinstance(exc, grpc.RpcError):
                    raise
                ended = end.error(exc)
                if ended is None:
                    return
                cause, error = exc, self._error(ended, method)
            finally:
                running.cancel()
                if writing is not None:
                    writing.cancel()
                    await asyncio.gather(writing, return_exceptions=True)
            if not await self._again(resending, error, method, request):
                raise error from cause
            if forget is not None:
                forget()

    def _begin(self, method: PublicMethod, request: Requests, call: Call) -> Any:
        given = (request,) if isinstance(request, bytes) else ()
        return self._upstreams.call(method)(
            *given, timeout=call.deadline.budget(margin_s=0.0), metadata=call.metadata
        )

    async def _again(
        self, resending: Resending, error: MeshError, method: PublicMethod, request: Requests
    ) -> bool:
        """Return whether a failed call may be sent again; wait until it is time, if not too many wait."""
        restarts, retryable = self._upstreams.restarts, method.facts.retryable
        # Before its first reply an ask or an audit has no effect.
        always = method.streams_replies and not retryable
        if not isinstance(request, bytes) or not restarts.allows(
            resending, error, method.upstream, retryable=retryable, always=always
        ):
            return False
        try:
            with self._waiting.admit(1):
                channel = self._upstreams.channel(method)
                return await restarts.wait(resending, error, method.upstream, channel)
        except Overloaded:
            return False

    def _error(self, error: grpc.RpcError, method: PublicMethod) -> MeshError:
        """Return the error that the service sent; UNREACHABLE, as of the SDK, where none answered."""
        if status_of(error) is not None:
            self._upstreams.restarts.reached(method.upstream)
            return to_mesh_error(error)
        match code_of(error):
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                return Unavailable("UNREACHABLE", f"the {method.upstream} does not answer")
            case grpc.StatusCode.UNIMPLEMENTED:
                return Unimplemented("the service behind this gateway is of a version without this method")
        return to_mesh_error(error)


async def _write(running: Any, requests: AsyncIterable[bytes]) -> None:
    """Write a stream of requests; where the call ends before it, its status says why.

    gRPC for asyncio would only log what the stream raises: here it is raised, and the call cancelled.
    """
    try:
        async for request in requests:
            try:
                await running.write(request)
            except asyncio.InvalidStateError:  # the call is over
                return
        await running.done_writing()
    except grpc.RpcError:
        return
    except BaseException:
        running.cancel()
        raise
