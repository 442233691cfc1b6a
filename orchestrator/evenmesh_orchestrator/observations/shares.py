"""Share a bounded store among tenants whose number is not known in advance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

TENANT_SHARE: Final = 0.75
"""Default part of a store that a tenant alone can fill."""


class DynamicShares:
    """Counts what tenants hold of a store, and how much each may add.

    A tenant may add x if afterwards its holding h and the free room f satisfy (1 - share) h ≤ share f: the
    dynamic threshold of Choudhury and Hahne (1998), section III, with alpha = share / (1 - share). So one
    tenant alone fills at most ``share`` of the store, n tenants that take all they get hold
    share / (1 + (n - 1) share) each if they grow together, and a newcomer can take ``share`` of what is free.
    Nothing has to be removed
    when a tenant comes, and nothing has to be known about the others.

    Args:
        limit: size of the store, in bytes or entries, [0, inf).
        share: the largest part that one tenant can fill, (0, 1]; 1 lets it fill the store.
    """

    def __init__(self, limit: int, share: float = TENANT_SHARE) -> None:
        if limit < 0 or not 0 < share <= 1:
            raise ValueError(f"limit must be at least 0 and share in (0, 1], got {limit} and {share}")
        self._limit = limit
        self._share = share
        self._held: Counter[str] = Counter()
        self._total = 0

    @property
    def total(self) -> int:
        """Return what all tenants hold."""
        return self._total

    def of(self, tenant: str) -> int:
        """Return what a tenant holds."""
        return self._held[tenant]

    def room(self, tenant: str) -> int:
        """Return the most that a tenant may add now, [0, inf)."""
        free = self._limit - self._total
        return max(0, int(self._share * free - (1 - self._share) * self._held[tenant]))

    def add(self, tenant: str, amount: int) -> None:
        """Count what a tenant adds, or, with a negative amount, what it gives back."""
        self._total += amount
        self._held[tenant] += amount
        if not self._held[tenant]:
            del self._held[tenant]

    def replace(self, held: Mapping[str, int]) -> None:
        """Replace what every tenant holds, after counting the store again."""
        self._held = Counter({tenant: amount for tenant, amount in held.items() if amount})
        self._total = sum(self._held.values())
