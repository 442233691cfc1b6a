"""Forward calls to the services: bytes in and out, cancelled with their request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, TypeAlias, cast

import grpc

from evenmesh.resending import Resending
from evenmesh.wire.call_ends import CallEnd
from evenmesh.wire.errors import MeshError, Unavailable, Unimplemented, code_of, status_of
from evenmesh_gateway.calls import Call
from evenmesh_gateway.methods import PublicMethod
from evenmesh_gateway.upstreams import Upstreams
from evenmesh_kit.rpc.statuses import to_mesh_error

Requests: TypeAlias = bytes | AsyncIterable[bytes]
"""A serialized request, or a stream of them."""


class Forwarder:
    """Forwards calls; whoever cancels or closes one here cancels it in its service.

    Args:
        upstreams: the services.
    """

    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams

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
        running = self._begin(method, request, call)
        end = CallEnd(running)
        try:
            if not isinstance(request, bytes):
                await _write(running, request)
            return cast(bytes, await running)
        except grpc.RpcError as error:
            raise _error(end.error(error) or error) from error
        finally:
            running.cancel()

    async def replies(
        self, method: PublicMethod, request: Requests, call: Call
    ) -> AsyncGenerator[bytes, None]:
        """Yield the replies of a method; closing the generator cancels the call.

        An ask or an audit is sent again where a server stops or starts before it has begun, as the SDK does.

        Raises:
            MeshError: the call failed.
            Exception: what the stream of requests raises; the call is cancelled then.
        """
        resending = Resending(call.deadline.remaining())
        while True:
            running = self._begin(method, request, call)
            end = CallEnd(running)
            writing = None
            if not isinstance(request, bytes):
                writing = asyncio.create_task(_write(running, request))
            try:
                async for reply in running:
                    resending.begun = True
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
                error = _error(ended)
                # What may be sent again by its contract, the channel has sent again.
                again = isinstance(request, bytes) and not method.facts.retryable
                if not again or not resending.allows(error):
                    raise error from exc
            finally:
                running.cancel()
                if writing is not None:
                    writing.cancel()
                    await asyncio.gather(writing, return_exceptions=True)
            await asyncio.sleep(resending.pause_s)

    def _begin(self, method: PublicMethod, request: Requests, call: Call) -> Any:
        given = (request,) if isinstance(request, bytes) else ()
        return self._upstreams.call(method)(
            *given, timeout=call.deadline.budget(margin_s=0.0), metadata=call.metadata
        )


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


def _error(error: grpc.RpcError) -> MeshError:
    """Return the error that the service sent; UNREACHABLE, as of the SDK, where none answered."""
    if status_of(error) is None:
        match code_of(error):
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                return Unavailable("UNREACHABLE", "a service that this call needs does not answer")
            case grpc.StatusCode.UNIMPLEMENTED:
                return Unimplemented("the service behind this gateway is of a version without this method")
    return to_mesh_error(error)
