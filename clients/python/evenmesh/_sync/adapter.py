"""What differs between grpc.aio and grpc, on the side of grpc. Written by hand, unlike its neighbours."""

import queue
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from evenmesh.wire import channel

A = TypeVar("A")
T = TypeVar("T")

Channel: TypeAlias = grpc.Channel
UnaryCall: TypeAlias = grpc.UnaryUnaryMultiCallable
INTERRUPTED: Final = KeyboardInterrupt
"""Raised in a call that nobody waits for any more."""

connect = channel.connect_sync


def is_interrupted() -> bool:
    """Return whether whoever waits was interrupted; no call of grpc raises otherwise what then ends it."""
    return True


sleep = time.sleep


def at_once(call: Callable[[A], T], arguments: Iterable[A]) -> list[T]:
    """Make one call for each argument, all at once; return the results in the order of the arguments."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(call, arguments))


def until_ready(channel: Channel, timeout: float) -> bool:
    """Return whether a channel is connected, at the latest after ``timeout`` seconds."""
    # A call, as gRPC's own future leaves a thread behind that fails where the channel is closed meanwhile.
    health = health_pb2_grpc.HealthStub(channel)
    try:
        health.Check(health_pb2.HealthCheckRequest(), timeout=timeout, wait_for_ready=True)
    except grpc.RpcError as exc:
        return exc.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)
    except ValueError:  # it is closed
        return False
    return True


class Stream:
    """A call that sends and receives messages, one at a time.

    Args:
        method: method of a stub.
        timeout: seconds the call may take.
    """

    def __init__(self, method: Any, timeout: float) -> None:
        # gRPC reads what is sent from an iterator in a thread of its own; None ends both.
        self._outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = method(iter(self._outgoing.get, None), timeout=timeout)

    def write(self, message: Any) -> None:
        """Send a message."""
        self._outgoing.put(message)

    def read(self) -> Any:
        """Return the next message; None at the end.

        Raises:
            grpc.RpcError: the call failed.
        """
        return next(self._call, None)

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()
        self._outgoing.put(None)
