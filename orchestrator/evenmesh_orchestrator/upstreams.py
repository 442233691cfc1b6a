"""Calls to the other services through circuit breakers, with hedging."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from opentelemetry import metrics

from evenmesh_kit.rpc.breaker import Breaker, Circuit
from evenmesh_kit.rpc.hedging import Hedging
from evenmesh_orchestrator.settings import OrchestratorSettings

T = TypeVar("T")

_log = logging.getLogger("evenmesh.orchestrator.upstreams")


class Upstream:
    """Another service.

    Args:
        breaker: refuses calls while the service does not answer.
        hedging: makes a second call for a slow one; None for never.
    """

    def __init__(self, breaker: Breaker, hedging: Hedging | None = None) -> None:
        self.breaker = breaker
        self._hedging = hedging

    async def call(
        self, make: Callable[[], Awaitable[T]], *, timeout_s: float, repeatable: bool = False
    ) -> T:
        """Make a call, unless the circuit is open.

        Args:
            make: makes the call; raises MeshError.
            timeout_s: its timeout. Seconds.
            repeatable: whether it may be hedged.

        Raises:
            MeshError: the call failed; UNAVAILABLE, ``CIRCUIT_OPEN`` if it was not made.
        """
        with self.breaker.watch(timeout_s):
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
    """

    def __init__(self, settings: OrchestratorSettings, meter: metrics.Meter) -> None:
        self._settings = settings
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
        return Upstream(breaker, Hedging(hedge_s, share=self._settings.hedge_share, on_hedge=hedged))
