"""Calls to the other services through circuit breakers, with hedging, in which tenants take turns."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from opentelemetry import metrics

from evenmesh.wire.deadline import Deadline
from evenmesh_kit.admission.queue import Admission, Admitted
from evenmesh_kit.rpc.breaker import Breaker, Circuit
from evenmesh_kit.rpc.hedging import Hedging
from evenmesh_orchestrator.settings import OrchestratorSettings

T = TypeVar("T")

CALLS: Final = 1000
"""Default number of calls at a time to a service: less than it takes on one connection."""

_log = logging.getLogger("evenmesh.orchestrator.upstreams")


class Upstream:
    """Another service.

    Args:
        breaker: refuses calls while the service does not answer.
        hedging: makes a second call for a slow one; None for never.
        calls: bounds the calls at a time; None: 1,000, of whichever tenant.
    """

    def __init__(
        self, breaker: Breaker, hedging: Hedging | None = None, calls: Admission | None = None
    ) -> None:
        self.breaker = breaker
        self._hedging = hedging
        self.calls = calls or Admission(CALLS, "calls")

    def turn(self) -> Admitted:
        """Hold one of the calls at a time, while a block under ``async with`` runs, once its turn has come.

        Calls beyond those of a connection would wait in gRPC: first come, first served, whoever comes.
        """
        return self.calls.admit(1, queue_s=math.inf)

    @asynccontextmanager
    async def watched(self, timeout_s: float) -> AsyncIterator[Callable[[], None]]:
        """Judge the service by the call in the block, which begins in its turn.

        A wait for the turn says nothing of the service. Yields a function to call at the first message of a
        stream.

        Args:
            timeout_s: timeout of the call, the wait for its turn included. Seconds.

        Raises:
            MeshError: UNAVAILABLE, ``CIRCUIT_OPEN``: the circuit is open; or its turn did not come in time.
        """
        until = Deadline.after(timeout_s)
        self.breaker.check()
        async with self.turn():
            with self.breaker.watch(until.remaining()) as answered:
                yield answered

    async def call(
        self, make: Callable[[], Awaitable[T]], *, timeout_s: float, repeatable: bool = False
    ) -> T:
        """Make a call in its turn, unless the circuit is open.

        Args:
            make: makes the call; raises MeshError.
            timeout_s: its timeout, the wait for its turn included. Seconds.
            repeatable: whether it may be hedged.

        Raises:
            MeshError: the call failed; UNAVAILABLE, ``CIRCUIT_OPEN`` if it was not made.
        """
        async with self.watched(timeout_s):
            if repeatable and self._hedging is not None:
                return await self._hedging.first(make)
            return await make()


class Upstreams:
    """The four other services, configured by the settings, with metrics.

    ``evenmesh.upstream.circuit`` by ``upstream``: 0 closed, 1 half-open, 2 open. ``evenmesh.upstream.hedges``
    by ``upstream`` and ``won``: second calls, and whether the second one answered first.

    Args:
        settings: of the orchestrator.
        meter: creates the metrics.

    Attributes:
        calls: bounds the calls to each of them.
    """

    def __init__(self, settings: OrchestratorSettings, meter: metrics.Meter) -> None:
        self._settings = settings
        self.calls: list[Admission] = []
        self._circuits = meter.create_gauge(
            "evenmesh.upstream.circuit", description="State of the circuit to a service: 0 closed, 2 open."
        )
        self._hedges = meter.create_counter(
            "evenmesh.upstream.hedges", description="Second calls for slow ones."
        )
        for name in ("retriever", "reranker"):
            for won in (False, True):
                self._hedges.add(0, {"upstream": name, "won": won})
        self.retriever = self._upstream("retriever", settings.hedge_retrieve_s)
        self.reranker = self._upstream("reranker", settings.hedge_rerank_s)
        self.generator = self._upstream("generator")
        self.evaluator = self._upstream("evaluator")

    def _upstream(self, name: str, hedge_s: float = 0.0) -> Upstream:
        def changed(circuit: Circuit) -> None:
            self._circuits.set(circuit.value, {"upstream": name})
            if circuit is not Circuit.HALF_OPEN:
                level = logging.WARNING if circuit is Circuit.OPEN else logging.INFO
                _log.log(level, "circuit is %s", circuit.name.lower(), extra={"upstream": name})

        def hedged(won: bool) -> None:
            self._hedges.add(1, {"upstream": name, "won": won})

        breaker = Breaker(
            name,
            failures=self._settings.breaker_failures,
            open_s=self._settings.breaker_open_s,
            slow_s=self._settings.breaker_slow_s,
            on_change=changed,
        )
        self._circuits.set(Circuit.CLOSED.value, {"upstream": name})
        hedging = Hedging(hedge_s, share=self._settings.hedge_share, on_hedge=hedged)
        calls = Admission(self._settings.upstream_calls, f"{name} calls", share=self._settings.tenant_share)
        self.calls.append(calls)
        return Upstream(breaker, hedging, calls)
