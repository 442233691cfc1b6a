"""Values of feedback: items, their outcomes, what is known of each agent, and served rankings."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Final

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_reranker.domain import Agent

_ROW_BYTES: Final = 256
_QUOTES: Final = 4


class Flag(IntEnum):
    """Why feedback is kept out of training; the numbers are those of the database."""

    NONE = 0
    CONTRADICTION = 1
    INCONSISTENT = 2
    CONSTANT = 3


class RecordStatus(IntEnum):
    """Whether an item of a batch was stored, and why not."""

    STORED = 0
    DUPLICATE = 1
    CONFLICT = 2
    OVER_DAY = 3
    OVER_TOTAL = 4
    TOO_MANY_AGENTS = 5
    UNREGISTERED = 6
    OVER_BYTES = 7


@dataclass(frozen=True)
class Feedback:
    """How useful one passage, given alone, was to one agent.

    Attributes:
        id: idempotency id, unique among the agent's items.
        query: the query.
        passage_id: the passage.
        agent: the agent that judges.
        usefulness: the agent's utility, [0, 1].
        model_version: version that served the ranking; empty if none did.
        collection: collection of the passage; empty if none.
        ranking: the served ranking, best first; empty if not given.
    """

    id: str
    query: str
    passage_id: str
    agent: Agent
    usefulness: float
    model_version: str = ""
    collection: str = ""
    ranking: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> bytes:
        """Digest of the content without the id, 16 bytes. A replay has the same."""
        texts = (self.query, self.passage_id, self.model_version, self.collection, *self.ranking)
        # -0.0 + 0.0 is 0.0: equal numbers have equal digests.
        return _digest(texts, struct.pack("<d", self.usefulness + 0.0))

    @cached_property
    def size(self) -> int:
        """About the bytes that storing it takes."""
        texts = (self.id, self.query, self.passage_id, self.model_version, self.collection, *self.ranking)
        return _ROW_BYTES + sum(len(text.encode()) + _QUOTES for text in texts)

    @cached_property
    def judged(self) -> int:
        """Digest of what was judged, query and passage, in 64 bits, signed."""
        return _signed(_digest((self.query, self.collection, self.passage_id)))

    @cached_property
    def query_key(self) -> int:
        """Digest of the query in 64 bits, signed, to count distinct queries."""
        return _signed(_digest((self.query,)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """The status of one item, and why it is kept out of training if it is stored."""

    status: RecordStatus
    flag: Flag = Flag.NONE


@dataclass(frozen=True, slots=True)
class StoredFeedback:
    """A stored item.

    Attributes:
        sequence: its place in the order of storing of all tenants, [1, inf); nothing for callers.
        feedback: the item.
        flag: why it is kept out of training.
        recorded_at_us: when it was stored. Microseconds since 1970.
        number: its place in the order of storing of its tenant, [1, inf).
    """

    sequence: int
    feedback: Feedback
    flag: Flag
    recorded_at_us: int
    number: int


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """An agent and the amount of its feedback.

    Attributes:
        agent: the agent.
        description: free text.
        registered_at_us: when it was registered; None if it never was. Microseconds since 1970.
        stored: items stored now.
        flagged: those of them kept out of training.
        today: items stored since midnight UTC.
        mean_usefulness: of the items stored now; None without any.
        last_feedback_at_us: when its last item was stored; None if none was.
    """

    agent: Agent
    description: str
    registered_at_us: int | None
    stored: int
    flagged: int
    today: int
    mean_usefulness: float | None
    last_feedback_at_us: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """How much feedback is accepted.

    Attributes:
        per_day: items of one agent in a UTC day, [1, inf).
        total: items of one agent stored at a time, [1, inf).
        agents: agents of a tenant, registered or not, [1, inf).
        registered_only: whether only registered agents may give feedback.
        tenant_bytes: bytes of a tenant's items stored at a time, [1, inf).
    """

    per_day: int = 100_000
    total: int = 1_000_000
    agents: int = 10_000
    registered_only: bool = False
    tenant_bytes: int = 4 * 2**30


@dataclass(frozen=True, slots=True)
class ServedRanking:
    """A record that passages were ranked for a query of an agent by a version.

    Attributes:
        key: digest of query, agent and version, 16 bytes, see :func:`served_key`.
        passages: 8 bytes for each passage, ascending, see :func:`passage_keys`.
        served_at_us: when. Microseconds since 1970.
        tenant: whose agent it was.
    """

    key: bytes
    passages: bytes
    served_at_us: int
    tenant: str


def served_key(query: str, agent: Agent, model_version: str) -> bytes:
    """Return a digest of query, agent and version, 16 bytes."""
    # The default tenant is left out, so that keys from before there were tenants stay valid.
    tenant = () if agent.tenant == DEFAULT_TENANT else (agent.tenant,)
    return _digest((query, agent.task_id, agent.model_id, model_version, *tenant))


def passage_keys(ids: Iterable[str]) -> list[bytes]:
    """Return a digest of each passage id, 8 bytes, ascending."""
    return sorted(hashlib.blake2b(one.encode(), digest_size=8).digest() for one in ids)


def _digest(texts: Iterable[str], end: bytes = b"") -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        data = text.encode()
        digest.update(len(data).to_bytes(4, "little"))
        digest.update(data)
    digest.update(end)
    return digest.digest()


def _signed(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little", signed=True)
