"""Hold the rates of tenants across the replicas of a service, in a store that speaks the Redis protocol.

The package ``limits`` does not do it: its buckets cannot go into debt, as they must where the tokens of an
answer are known at its end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from opentelemetry import metrics

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.admission.limits import TenantLimits
from evenmesh_kit.redis_client import answer, connect

RATE_LIMITED: Final = "RATE_LIMITED"
OUT_OF_TOKENS: Final = "OUT_OF_TOKENS"

_ANSWER_S: Final = 1.0
_PAUSE_S: Final = 1.0
_US: Final = 1_000_000
_log = logging.getLogger("evenmesh.kit.limits")

# A bucket is the time at which it is full, in microseconds of the server's clock (the generic cell rate
# algorithm). A full bucket has no key.
_SCRIPT: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local per_s = {tonumber(ARGV[1]), tonumber(ARGV[3])}
local size = {tonumber(ARGV[2]), tonumber(ARGV[4])}
local function full_at(which)
  return math.max(now, tonumber(redis.call('GET', KEYS[which]) or now))
end
local function wait(which)
  if per_s[which] == 0 then return 0 end
  local room = size[which] - math.min(1, size[which])
  return math.ceil(full_at(which) - now - room * 1000000 / per_s[which])
end
local function take(which, count)
  if per_s[which] == 0 or count == 0 then return end
  local at = full_at(which) + count * 1000000 / per_s[which]
  redis.call('SET', KEYS[which], string.format('%.0f', at), 'PX', math.ceil((at - now) / 1000) + 1000)
end
if ARGV[5] == '1' and wait(2) > 0 then return {2, wait(2)} end
if ARGV[6] == '1' and wait(1) > 0 then return {1, wait(1)} end
take(1, tonumber(ARGV[6]))
take(2, tonumber(ARGV[7]))
return {0, 0}
"""
"""KEYS: bucket of calls, bucket of tokens. ARGV: calls a second, most at once, tokens a second, most at once
(0 for no limit); 1 to need a token, 1 to take a call, tokens to take. Returns the bucket that lacks one, or
0, and the wait in microseconds."""


class Excess(NamedTuple):
    """Why a call may not begin, and the time after which it may. Seconds."""

    reason: str
    wait_s: float


class SharedRates:
    """Counts calls and tokens of tenants for all replicas of a service that use one store.

    A call takes one round trip: a script checks and takes at once, on the store's clock. While the store does
    not answer, calls are admitted by the limits of their process alone (``required`` False) or fail with
    UNAVAILABLE, ``LIMITS_UNAVAILABLE``; it is asked again after a pause.

    Args:
        url: ``redis://``, ``rediss://`` or ``unix://``; it may hold a password.
        service: name that the replicas have in common.
        required: whether calls fail without the store.
        meter: counts calls admitted without the store, ``evenmesh.limits.unshared``.
        clock: monotonic seconds.

    Raises:
        ValueError: the URL is none.
        ImportError: the package ``redis`` is missing.
    """

    def __init__(
        self,
        url: str,
        service: str,
        *,
        required: bool,
        meter: metrics.Meter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = connect(url, _ANSWER_S)
        self._script = self._store.register_script(_SCRIPT)
        self._service = service
        self._required = required
        self._clock = clock
        self._ask_again_at = -math.inf
        self._away = False
        self._spending: set[asyncio.Task[object]] = set()
        self._unshared = meter.create_counter(
            "evenmesh.limits.unshared",
            description="Calls admitted by their process alone because the store of limits was away.",
        )

    async def begin(self, tenant: str, limits: TenantLimits, *, spends_tokens: bool) -> Excess | None:
        """Count the beginning of a call or turn, or return why it may not begin.

        Raises:
            Unavailable: the store is away and required.
        """
        counted = await self._run(tenant, limits, needs_token=spends_tokens, calls=1)
        if counted is None:
            if self._required:
                raise Unavailable("LIMITS_UNAVAILABLE", "the store of limits does not answer; try again")
            self._unshared.add(1)
            return None
        which, wait_us = counted
        return Excess((RATE_LIMITED, OUT_OF_TOKENS)[which - 1], wait_us / _US) if which else None

    def spend(self, tenant: str, limits: TenantLimits, tokens: int) -> None:
        """Count tokens that models have read and written, soon; nothing while the store is away."""
        if limits.tokens_per_minute is not None and tokens:
            task = asyncio.create_task(self._run(tenant, limits, tokens=tokens))
            self._spending.add(task)
            task.add_done_callback(self._spending.discard)

    async def close(self) -> None:
        """Count what has been spent, and close the connections."""
        await asyncio.gather(*self._spending, return_exceptions=True)
        await self._store.aclose()

    async def _run(
        self,
        tenant: str,
        limits: TenantLimits,
        *,
        needs_token: bool = False,
        calls: int = 0,
        tokens: int = 0,
    ) -> tuple[int, int] | None:
        """Return the script's answer; None while the store is away."""
        if self._clock() < self._ask_again_at:
            return None
        # Other limits are other buckets, which begin full, also where replicas read the file at other times.
        rates = (
            (limits.calls_per_s or 0, limits.calls_at_once),
            (limits.tokens_per_s, limits.tokens_per_minute or 0),
        )
        scope = f"evenmesh:{{{self._service}:{tenant}}}"  # one slot of a cluster
        names = [
            f"{scope}:{what}:{per_s:g}:{most:g}"
            for what, (per_s, most) in zip(("calls", "tokens"), rates, strict=True)
        ]
        arguments = [*rates[0], *rates[1], int(needs_token), calls, tokens]
        try:
            which, wait_us = await answer(self._script(keys=names, args=arguments), _ANSWER_S)
        except Exception as error:  # noqa: BLE001 - whatever the store's library raises, it is away
            self._ask_again_at = self._clock() + _PAUSE_S
            if not self._away:
                what = "calls fail" if self._required else "each process limits by itself"
                _log.warning("the store of limits is away, %s: %s", what, type(error).__name__)
            self._away = True
            return None
        if self._away:
            self._away = False
            _log.info("the store of limits answers: limits hold for all replicas")
        return int(which), int(wait_us)
