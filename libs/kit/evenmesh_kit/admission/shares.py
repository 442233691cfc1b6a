"""Bound what one tenant holds of a service at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from evenmesh.wire.errors import OVERLOADED, SHARE_FULL, Overloaded
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import ANYONE

_RETRY_S: Final = 1.0


def full_share(message: str, retry_after_s: float = _RETRY_S) -> Overloaded:
    """Return the error of a caller whose tenant has its share in flight.

    Its reason is ``SHARE_FULL``, which no objective of availability counts. Without authentication all
    callers have one share, so it is ``OVERLOADED`` there.

    Args:
        message: one line that names the share.
        retry_after_s: time after which it should have room. Seconds.
    """
    reason = OVERLOADED if callers.current() is ANYONE else SHARE_FULL
    return Overloaded(message, retry_after_s, reason)


class TenantShares:
    """Counts what each tenant holds and refuses more than its share at once. For one event loop.

    A share is no reserve: the admission beside it bounds the sum of all tenants. The share keeps one tenant
    from filling that alone.

    Args:
        most: most that one tenant may hold, [1, inf).
        unit: plural name of what is counted, for messages.
        setting: name of the setting that the bound comes from, for messages.
    """

    def __init__(self, most: int, unit: str, setting: str) -> None:
        if most < 1:
            raise ValueError(f"most must be at least 1, got {most}")
        self.most = most
        self._unit = unit
        self._setting = setting
        self._held: Counter[str] = Counter()

    def held(self, tenant: str) -> int:
        """Return what a tenant holds."""
        return self._held[tenant]

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Hold ``amount`` for the caller's tenant while the block runs.

        Raises:
            Overloaded: the tenant would hold more than its share.
        """
        tenant = callers.current().tenant
        held = self._held[tenant]
        if held + amount > self.most:
            raise full_share(
                f"the tenant holds {held} of its {self.most} {self._unit}, {amount} more do not fit: wait "
                f"for calls of the tenant to end, or raise {self._setting}"
            )
        self._held[tenant] += amount
        try:
            yield
        finally:
            self._held[tenant] -= amount
            if not self._held[tenant]:
                del self._held[tenant]
