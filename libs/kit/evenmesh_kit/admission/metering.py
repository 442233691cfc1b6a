"""Meter what each tenant uses of a service against its limits: calls, concurrent calls, tokens of models."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

import grpc
from opentelemetry import metrics

from evenmesh.common.v1.method_options_pb2 import METERING_TOKENS
from evenmesh.wire.errors import MeshError
from evenmesh.wire.methods import facts_of
from evenmesh_kit.admission.limits import Limits, TenantLimits
from evenmesh_kit.admission.shared_rates import OUT_OF_TOKENS, RATE_LIMITED, SharedRates
from evenmesh_kit.admission.token_bucket import TokenBucket
from evenmesh_kit.rpc.handlers import Behaviour, Context, Handler, HandlerInterceptor
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import ANYONE, Role

_LEAST_DELAY_S: Final = 0.05
_CONCURRENT_DELAY_S: Final = 1.0
_LOOK_AT: Final = 1024
"""Number of meters from which on those of idle tenants are forgotten."""


class Meter:
    """Counts what one tenant uses.

    Rejections are RESOURCE_EXHAUSTED with a retry delay; the reason names the limit: ``RATE_LIMITED``,
    ``TOO_MANY_CALLS``, ``TOO_MANY_STREAMS`` or ``OUT_OF_TOKENS``.

    Args:
        tenant: name of the tenant.
        limits: its limits.
        clock: monotonic seconds.
        rates: counts calls and tokens of all replicas; None for those of this process alone.

    Attributes:
        users: calls that may still count something here.
    """

    def __init__(
        self,
        tenant: str,
        limits: TenantLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        rates: SharedRates | None = None,
    ) -> None:
        self._tenant = tenant
        self._clock = clock
        self._rates = rates
        self._running = 0
        self._streams = 0
        self.users = 0
        self.limits = limits

    @property
    def limits(self) -> TenantLimits:
        """Return the limits. Setting new ones fills the buckets; running calls stay counted."""
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
        """Return its share of the work when several tenants wait, (0, inf)."""
        return self._limits.weight

    @property
    def idle(self) -> bool:
        """Return whether no call uses it and the buckets are full: a new meter would say the same."""
        return not self.users and all(one is None or one.full for one in (self._calls, self._tokens))

    @asynccontextmanager
    async def call(self, *, spends_tokens: bool, streams: bool = False) -> AsyncIterator[None]:
        """Count one call while the block runs.

        Args:
            spends_tokens: whether it makes models read or write.
            streams: whether the caller streams its requests, and so lets the call last.

        Raises:
            MeshError: the tenant is at a limit.
        """
        most = self._limits.concurrent
        if most is not None and self._running >= most:
            raise self._refusal(
                "TOO_MANY_CALLS", f"has {self._running} calls under way, of {most}", _CONCURRENT_DELAY_S
            )
        most = self._limits.streams
        if streams and most is not None and self._streams >= most:
            raise self._refusal(
                "TOO_MANY_STREAMS", f"has {self._streams} streams open, of {most}", _CONCURRENT_DELAY_S
            )
        self._running += 1
        self._streams += streams
        try:
            await self.begin(spends_tokens=spends_tokens)
            yield
        finally:
            self._running -= 1
            self._streams -= streams

    async def begin(self, *, spends_tokens: bool) -> None:
        """Count the beginning of a call, or of a turn within one; raises as :meth:`call`."""
        # Tokens first: a call rejected for them must not count.
        if spends_tokens and self._tokens is not None and (wait := self._tokens.wait_s()):
            raise self._too_fast(OUT_OF_TOKENS, wait)
        calls = self._calls
        if calls is not None and (wait := calls.take()):
            raise self._too_fast(RATE_LIMITED, wait)
        if self._rates is None or not self._limits.rated:
            return
        # This process counts a part of what the store counts, so the store need not be asked about the rest.
        begun = False
        try:
            excess = await self._rates.begin(self._tenant, self._limits, spends_tokens=spends_tokens)
            begun = excess is None
        finally:
            if calls is not None and not begun:
                calls.spend(-1)
        if excess is not None:
            raise self._too_fast(*excess)

    def spend(self, tokens: int) -> None:
        """Count tokens that a model has read and written; a debt delays the next call."""
        if self._tokens is not None:
            self._tokens.spend(tokens)
            if self._rates is not None:
                self._rates.spend(self._tenant, self._limits, tokens)

    def _too_fast(self, reason: str, wait_s: float) -> MeshError:
        if reason == OUT_OF_TOKENS:
            what = f"has used its {self._limits.tokens_per_minute} tokens a minute"
        else:
            what = f"makes more than {self._limits.calls_per_s:g} calls a second"
        return self._refusal(reason, what, wait_s)

    def _refusal(self, reason: str, what: str, wait_s: float) -> MeshError:
        delay = math.ceil(100 * max(wait_s, _LEAST_DELAY_S)) / 100
        message = f"tenant {self._tenant} {what}; try again in {delay:.2f} s"
        return MeshError(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, message, retry_after_s=delay)


class Metering(HandlerInterceptor):
    """Server interceptor that meters every call against the limits of its tenant.

    Runs inside authentication. Calls of other services of the mesh are never rejected, as the service that
    the caller reached did so; their tokens are counted. Without authentication, services look like any
    caller: their calls count against the tenant they name.

    Without ``rates``, limits are those of one process: n replicas admit n times as much. With it, rates hold
    for all replicas; calls and streams at a time are those of one process.

    Args:
        source: returns the limits; the same object until they change.
        meter: counts rejections, ``evenmesh.limits.refused`` by ``reason``.
        built_in: limits of calls and streams at a time where ``source`` states none.
        rates: counts calls and tokens of all replicas.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        source: Callable[[], Limits],
        meter: metrics.Meter,
        *,
        built_in: TenantLimits | None = None,
        rates: SharedRates | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._source = source
        self._built_in = built_in or TenantLimits()
        self._clock = clock
        self._limits = source()
        self._rates = rates
        self._meters: dict[str, Meter] = {}
        self._look_at = _LOOK_AT
        self._refused = meter.create_counter(
            "evenmesh.limits.refused", description="Calls rejected because a tenant was at a limit."
        )

    def of(self, tenant: str) -> Meter:
        """Return the meter of a tenant, with the limits that hold now."""
        limits = self._source()
        if limits is not self._limits:
            self._limits = limits
            for name, known in self._meters.items():
                if known.limits != (changed := self._of(name)):
                    known.limits = changed
        meter = self._meters.get(tenant)
        if meter is None:
            if len(self._meters) >= self._look_at:
                self._meters = {name: one for name, one in self._meters.items() if not one.idle}
                self._look_at = max(_LOOK_AT, 2 * len(self._meters))
            meter = Meter(tenant, self._of(tenant), clock=self._clock, rates=self._rates)
            self._meters[tenant] = meter
        return meter

    def _of(self, tenant: str) -> TenantLimits:
        return self._limits.of(tenant).or_else(self._built_in)

    def around(self, method: str, handler: Handler, behaviour: Behaviour) -> Behaviour:
        spends_tokens = facts_of(method).metering == METERING_TOKENS
        streams = handler.request_streaming

        async def metered(request: Any, context: Context) -> Any:
            caller = callers.current()
            meter = self.of(caller.tenant)
            enter(meter)
            admitted = False
            meter.users += 1
            try:
                if Role.SERVICE in caller.roles and caller.roles is not ANYONE.roles:
                    admitted = True
                    return await behaviour(request, context)
                async with meter.call(spends_tokens=spends_tokens, streams=streams):
                    admitted = True
                    return await behaviour(request, context)
            except MeshError as error:
                if not admitted:
                    self._refused.add(1, {"reason": error.reason})
                raise
            finally:
                meter.users -= 1

        return metered


_UNLIMITED: Final = Meter("", TenantLimits())
_current: ContextVar[Meter] = ContextVar("evenmesh_meter", default=_UNLIMITED)


def current() -> Meter:
    """Return the caller's meter; one without limits outside a call and where no limits are set."""
    return _current.get()


def enter(meter: Meter) -> None:
    """Make ``meter`` the current one for the rest of this task."""
    _current.set(meter)
