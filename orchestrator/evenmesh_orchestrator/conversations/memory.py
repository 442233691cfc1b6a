"""Conversations in the memory of one orchestrator."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from evenmesh_orchestrator.conversations import store as errors
from evenmesh_orchestrator.conversations.conversation import (
    Conversation,
    ConversationState,
    Limits,
    TurnRecord,
)
from evenmesh_orchestrator.conversations.options import Options
from evenmesh_orchestrator.conversations.store import TURN_BYTES, loser
from evenmesh_orchestrator.observations.shares import DynamicShares


class MemoryConversationStore:
    """A :class:`~evenmesh_orchestrator.conversations.store.ConversationStore` of this process alone.

    Args:
        limits: size and lifetime.
        clock: returns monotonic seconds.
    """

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        # By tenant and id, in the order of their last release.
        self._idle: dict[tuple[str, str], tuple[float, Conversation]] = {}
        self._busy: set[tuple[str, str]] = set()
        self._held = DynamicShares(limits.conversations, limits.tenant_share)
        self._bytes = DynamicShares(limits.bytes, limits.tenant_share)

    @property
    def lifetime_s(self) -> float:
        """See the port."""
        return self._limits.lifetime_s

    @property
    def num_bytes(self) -> int:
        """What all conversations take in memory. Bytes."""
        return self._bytes.total

    async def start(self) -> None:
        """See the port."""

    async def stop(self) -> None:
        """See the port."""

    async def acquire(self, tenant: str, conversation_id: str = "") -> Conversation:
        """See the port."""
        self._expire()
        key = tenant, conversation_id
        if key in self._busy:
            raise errors.busy()
        if conversation_id:
            if key not in self._idle:
                raise errors.unknown(self._limits, "it may be on another server, ")
            _, found = self._idle.pop(key)
        else:
            if not self._make_room(self._held, tenant, 1):
                raise errors.too_many(self._held.of(tenant))
            found = Conversation(secrets.token_hex(16), self._limits, tenant)
            self._held.add(tenant, 1)
        self._busy.add((tenant, found.id))
        return found

    def hold(self, tenant: str, size: int) -> None:
        """See the port."""
        if size > 0:
            self._check_room(tenant, size)
        self._bytes.add(tenant, size)

    async def keep(self, conversation: Conversation, settings: bytes, options: Options) -> None:
        """See the port."""
        more = len(settings) + options.num_bytes - len(conversation.settings) - conversation.options.num_bytes
        self._check_room(conversation.tenant, more + TURN_BYTES)
        self._grow(conversation, more)
        conversation.settings = settings
        if options is not conversation.options:
            conversation.set_options(options)

    async def add(
        self,
        conversation: Conversation,
        turn: TurnRecord,
        state: ConversationState,
        relevance: float | None,
    ) -> None:
        """See the port."""
        size = turn.num_bytes
        self._check_room(conversation.tenant, size)
        self._grow(conversation, size)
        conversation.add(turn, state)
        conversation.relevance = relevance

    async def release(self, conversation: Conversation) -> None:
        """See the port."""
        key = conversation.tenant, conversation.id
        self._busy.remove(key)
        if conversation.turns:
            self._idle[key] = (self._clock() + self._limits.lifetime_s, conversation)
        else:
            self._count(conversation, -1)

    def _grow(self, conversation: Conversation, size: int) -> None:
        self._bytes.add(conversation.tenant, size)
        conversation.num_bytes += size

    def _count(self, conversation: Conversation, sign: int) -> None:
        self._held.add(conversation.tenant, sign)
        self._bytes.add(conversation.tenant, sign * conversation.num_bytes)

    def _check_room(self, tenant: str, size: int) -> None:
        if not self._make_room(self._bytes, tenant, size):
            raise errors.too_large(self._bytes.of(tenant), size, self._limits)

    def _make_room(self, shares: DynamicShares, tenant: str, amount: int) -> bool:
        """Remove idle conversations until an amount fits; return False, and remove none, if it does not."""
        removed: dict[tuple[str, str], tuple[float, Conversation]] = {}
        while shares.room(tenant) < amount:
            most = loser(shares, tenant, {owner for owner, _ in self._idle})
            if most is None:
                self._idle = removed | self._idle
                for _, one in removed.values():
                    self._count(one, 1)
                return False
            key = next(key for key in self._idle if key[0] == most)
            removed[key] = self._idle.pop(key)
            self._count(removed[key][1], -1)
        return True

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, (ends, _) in self._idle.items() if ends <= now]:
            self._count(self._idle.pop(key)[1], -1)
