"""Share time among tenants: of one thread, or of the processors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable


class TenantTime:
    """Chooses the tenant that has had least time.

    This is start-time fair queueing (Goyal, Vin and Cheng, 1996, section 2) by the time that each piece of
    work has taken. A tenant that has had less than the others, because it asked for less, is first until it
    has had up to ``credit_s`` more. So a tenant that needs less than its share waits for the piece that runs,
    not for turns.

    Args:
        credit_s: most time that a tenant may have to its credit. Seconds, [0, inf).
    """

    def __init__(self, credit_s: float) -> None:
        self._credit_s = credit_s
        self._paid_until: dict[str, float] = {}
        self._virtual = 0.0

    def next(self, tenants: Iterable[str]) -> str:
        """Return which of these tenants is next; of equals the first.

        Raises:
            ValueError: there is none.
        """
        tenant = min(tenants, key=self._start)
        self._virtual = max(self._virtual, self._start(tenant))
        return tenant

    def in_credit(self, tenant: str) -> bool:
        """Return whether a tenant has had less time than those that are served now."""
        return self._start(tenant) < self._virtual

    def charge(self, tenant: str, seconds: float) -> None:
        """Record the time that a piece of a tenant's work has taken."""
        self._paid_until[tenant] = self._start(tenant) + seconds
        oldest = self._virtual - self._credit_s
        for name in [one for one, until in self._paid_until.items() if until <= oldest]:
            del self._paid_until[name]

    def _start(self, tenant: str) -> float:
        return max(self._paid_until.get(tenant, -math.inf), self._virtual - self._credit_s)


class RecentTenants:
    """Knows which tenants have asked lately.

    Args:
        within_s: how long a tenant counts after it has asked. Seconds, [0, inf).
        clock: seconds from any moment.
    """

    def __init__(self, within_s: float, clock: Callable[[], float]) -> None:
        self._within_s = within_s
        self._clock = clock
        self._asked: dict[str, float] = {}

    def note(self, tenant: str) -> None:
        """Record that a tenant has asked now."""
        now = self._clock()
        self._asked.pop(tenant, None)
        self._asked[tenant] = now  # the latest is last
        while now - next(iter(self._asked.values())) > self._within_s:
            del self._asked[next(iter(self._asked))]

    def others(self, tenant: str) -> bool:
        """Return whether another tenant has asked lately."""
        latest = next((at for one, at in reversed(self._asked.items()) if one != tenant), -math.inf)
        return self._clock() - latest <= self._within_s
