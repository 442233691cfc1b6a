"""What each tenant takes of a service, held against its limits: calls, calls at a time, tokens of models."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import grpc
from opentelemetry import metrics

from meshkit.bucket import TokenBucket
from meshkit.errors import MeshError
from meshkit.file_watch import WatchedFiles
from meshkit.handlers import Behaviour, Context, Handler, HandlerInterceptor, behaviour_of, with_behaviour
from meshkit.limits import Limits, TenantLimits
from meshkit.security import caller as callers
from meshkit.security.caller import ANYONE, Role

WRITING: Final = frozenset(
    {
        "/ragmesh.orchestrator.v1.OrchestratorService/Ask",
        "/ragmesh.orchestrator.v1.OrchestratorService/Audit",
        "/ragmesh.orchestrator.v1.OrchestratorService/Converse",
        "/ragmesh.generator.v1.GeneratorService/Generate",
        "/ragmesh.generator.v1.GeneratorService/GenerateBatch",
        "/ragmesh.generator.v1.GeneratorService/ScoreRelevance",
    }
)
"""Methods that make models read or write: refused while a tenant has no tokens left."""

_LEAST_DELAY_S: Final = 0.05
_CONCURRENT_DELAY_S: Final = 1.0


class Meter:
    """What one tenant takes.

    A refusal is RESOURCE_EXHAUSTED with a retry delay, and its reason is the limit: ``RATE_LIMITED``,
    ``TOO_MANY_CALLS`` or ``OUT_OF_TOKENS``.

    Args:
        tenant: whose.
        limits: what it may take.
        clock: monotonic seconds.
    """

    def __init__(
        self, tenant: str, limits: TenantLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tenant = tenant
        self._clock = clock
        self._running = 0
        self.limits = limits

    @property
    def limits(self) -> TenantLimits:
        """What it may take; setting other ones fills its buckets anew, calls that run stay counted."""
        return self._limits

    @limits.setter
    def limits(self, limits: TenantLimits) -> None:
        self._limits = limits
        self._calls = self._tokens = None
        if limits.calls_per_s is not None:
            self._calls = TokenBucket(limits.calls_per_s, limits.calls_at_once, clock=self._clock)
        if limits.tokens_per_minute is not None:
            self._tokens = TokenBucket(limits.tokens_per_s, limits.tokens_per_minute, clock=self._clock)

    @property
    def weight(self) -> float:
        """Its share when several tenants wait, (0, inf)."""
        return self._limits.weight

    @contextmanager
    def call(self, *, writes: bool) -> Iterator[None]:
        """Counts one call while the block runs.

        Args:
            writes: whether it makes models read or write.

        Raises:
            MeshError: the tenant has taken what it may.
        """
        most = self._limits.concurrent
        if most is not None and self._running >= most:
            raise self._refusal(
                "TOO_MANY_CALLS", f"has {self._running} calls under way, of {most}", _CONCURRENT_DELAY_S
            )
        self.begin(writes=writes)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    def begin(self, *, writes: bool) -> None:
        """Counts the beginning of a call, or of a turn within one; raises as :meth:`call`."""
        # Tokens first: a call that they refuse has taken nothing.
        if writes and self._tokens is not None and (wait := self._tokens.wait_s()):
            what = f"has used its {self._limits.tokens_per_minute} tokens a minute"
            raise self._refusal("OUT_OF_TOKENS", what, wait)
        if self._calls is not None and (wait := self._calls.take()):
            raise self._refusal(
                "RATE_LIMITED", f"makes more than {self._limits.calls_per_s:g} calls a second", wait
            )

    def spend(self, tokens: int) -> None:
        """Notes tokens that a model has read and written. What is owed is paid before the next call."""
        if self._tokens is not None:
            self._tokens.spend(tokens)

    def _refusal(self, reason: str, what: str, wait_s: float) -> MeshError:
        delay = math.ceil(100 * max(wait_s, _LEAST_DELAY_S)) / 100
        message = f"tenant {self._tenant} {what}; try again in {delay:.2f} s"
        return MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, message, retry_after_s=delay)


class Metering(HandlerInterceptor):
    """Server interceptor that holds every call against the limits of its tenant.

    Stands inside authentication. Calls of other services of the mesh, for whichever tenant, are not refused:
    that was done where they came in; the tokens they cost are noted. Without authentication a service cannot
    be told from anybody: calls between services are held against the limits too, of the tenant they name.

    Limits are those of one process: a service of n replicas takes n times as much.

    Args:
        file: the limits.
        meter: counts refusals, ``ragmesh.limits.refused`` by ``reason``.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        file: WatchedFiles[Limits],
        meter: metrics.Meter,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._file = file
        self._clock = clock
        self._read = file.content()
        self._meters: dict[str, Meter] = {}
        self._refused = meter.create_counter(
            "ragmesh.limits.refused", description="Calls refused because a tenant had taken what it may."
        )

    def of(self, tenant: str) -> Meter:
        """The meter of a tenant, with the limits that the file has now."""
        limits = self._file.content()
        if limits is not self._read:
            self._read = limits
            for name, known in self._meters.items():
                if known.limits != limits.of(name):
                    known.limits = limits.of(name)
        meter = self._meters.get(tenant)
        if meter is None:
            meter = self._meters[tenant] = Meter(tenant, limits.of(tenant), clock=self._clock)
        return meter

    def wrap(self, method: str, handler: Handler) -> Handler:
        return with_behaviour(handler, self._metered(behaviour_of(handler), writes=method in WRITING))

    def _metered(self, behaviour: Behaviour, *, writes: bool) -> Behaviour:
        async def metered(request: Any, context: Context) -> Any:
            caller = callers.current()
            meter = self.of(caller.tenant)
            enter(meter)
            if Role.SERVICE in caller.roles and caller.roles is not ANYONE.roles:
                return await behaviour(request, context)
            admitted = False
            try:
                with meter.call(writes=writes):
                    admitted = True
                    return await behaviour(request, context)
            except MeshError as error:
                if not admitted:
                    self._refused.add(1, {"reason": error.reason})
                raise

        return metered


_UNLIMITED: Final = Meter("", TenantLimits())
_current: ContextVar[Meter] = ContextVar("ragmesh_meter", default=_UNLIMITED)


def current() -> Meter:
    """The meter of whoever calls; one without limits outside a call, and where no limits are set."""
    return _current.get()


def enter(meter: Meter) -> None:
    """Makes ``meter`` the current one for the rest of this task."""
    _current.set(meter)
