"""Calls of gRPC's own services: streams, which clients keep open, and answers that they do not read."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from typing import Any, Final
from urllib.parse import unquote

from evenmesh.wire.errors import Overloaded
from evenmesh_kit.rpc.handlers import RUNTIME, Behaviour, Context, Handler, HandlerInterceptor
from evenmesh_kit.rpc.statuses import abort

_MOST: Final = 200
_MOST_OF_A_HOST: Final = 50


class RuntimeStreams(HandlerInterceptor):
    """Bounds the health watches and reflection streams, and ends them before a drain waits for them.

    They need no credential, so that a process has at most 200 of them, and 50 of one host. As many other
    calls of these services may run, which end when their callers have read the answers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: set[asyncio.Task[Any]] = set()
        self._of_hosts: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()

    def end(self) -> None:
        """End the running streams with status OK."""
        for task in self._running:
            task.cancel()

    def covers(self, method: str) -> bool:
        return method.startswith(RUNTIME)

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        if not handler.response_streaming:
            return self._answering(method, behaviour)

        async def watching(request: Any, context: Context) -> None:
            host = host_of(context.peer())
            if len(self._running) >= _MOST or self._of_hosts[host] >= _MOST_OF_A_HOST:
                await abort(context, Overloaded(f"too many streams of {method} and its like are open", 1.0))
            self._of_hosts[host] += 1
            task = asyncio.ensure_future(behaviour(request, context))
            self._running.add(task)
            try:
                # Not awaited directly: cancelling it ends the stream normally, cancelling the call does not.
                await asyncio.wait((task,))
            finally:
                self._running.discard(task)
                self._of_hosts[host] -= 1
                self._of_hosts += Counter()  # forgets hosts without streams
                task.cancel()
            if not task.cancelled():
                task.result()

        return watching

    def _answering(self, method: str, behaviour: Behaviour) -> Behaviour:
        async def answering(request: Any, context: Context) -> Any:
            host = host_of(context.peer())
            if self._answers.total() >= _MOST or self._answers[host] >= _MOST_OF_A_HOST:
                await abort(context, Overloaded(f"too many answers of {method} and its like wait", 1.0))
            self._answers[host] += 1
            try:
                return await behaviour(request, context)
            finally:
                self._answers[host] -= 1
                self._answers += Counter()

        return answering


def host_of(peer: str) -> str:
    """Return the host of a peer such as ``ipv4:10.0.0.7:4711``; the /64 network of an IPv6 address."""
    host = unquote(peer).rpartition(":")[0]
    if not host.startswith("ipv6:["):
        return host
    address = ipaddress.IPv6Address(host.removeprefix("ipv6:").strip("[]"))
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address.packed[:8] + bytes(8), 64)))
