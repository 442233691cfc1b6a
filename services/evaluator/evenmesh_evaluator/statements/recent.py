"""What was stated a moment ago: who asks again, or at the same time, costs no reading and no computing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Final

from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_evaluator.statements.codec import Draft
from evenmesh_kit.admission.shares import full_share
from evenmesh_kit.compute.tenant_cache import TenantCache

KEPT_S: Final = 5.0
"""How long what was stated is used again. Seconds."""
MOST_UNDER_WAY: Final = 64
"""Most different statements of one tenant that are computed at a time."""

_KEPT_BYTES: Final = 16 * 2**20
_KEY_BYTES: Final = 2048  # a provider's name and all else that a draft is kept by
_RETRY_S: Final = 1.0


class RecentStatements:
    """Shares statements of the last seconds among their readers; each tenant has its own. For one event loop.

    Args:
        clock: the time. Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: TenantCache[tuple[float, Draft | None]] = TenantCache(_KEPT_BYTES)
        self._under_way: dict[tuple[str, Hashable], asyncio.Task[Draft | None]] = {}
        self._running: Counter[str] = Counter()

    async def get(
        self, tenant: str, key: Hashable, compute: Callable[[], Awaitable[Draft | None]]
    ) -> Draft | None:
        """Return what is stated of a provider, None where nothing is known of it.

        Args:
            tenant: whose statement it is.
            key: provider, window and all else that it depends on.
            compute: reads, computes and writes it, where it is not known from the last seconds.

        Raises:
            Overloaded: the tenant has :data:`MOST_UNDER_WAY` others computed already.
            MeshError: as ``compute`` does; the next reader tries again.
        """
        found = self._kept.get(tenant, key)
        if found is not None and self._clock() - found[0] < KEPT_S:
            return found[1]
        # Shielded: one reader that hangs up must not end what others wait for.
        while (task := self._under_way.get((tenant, key))) is not None:
            with suppress(DeadlineExceeded):  # of the reader that began it: this one may have more time
                return await asyncio.shield(task)
        if self._running[tenant] >= MOST_UNDER_WAY:
            raise full_share(
                f"{MOST_UNDER_WAY} statements of this tenant are computed at the moment: ask again later",
                _RETRY_S,
            )
        task = self._under_way[tenant, key] = asyncio.create_task(self._computed(tenant, key, compute))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def _computed(
        self, tenant: str, key: Hashable, compute: Callable[[], Awaitable[Draft | None]]
    ) -> Draft | None:
        self._running[tenant] += 1
        began = self._clock()
        try:
            draft = await compute()
        finally:
            del self._under_way[tenant, key]
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
        # Younger than what it read: an ask that is stored in between is in the next one.
        self._kept.put(tenant, key, (began, draft), _KEY_BYTES + (0 if draft is None else draft.size))
        return draft
