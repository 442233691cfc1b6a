"""What agents say of passages, what becomes of it, and what is known of each agent."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

from services.reranker.domain import DEFAULT_TENANT, Agent


class Flag(IntEnum):
    """Why feedback is kept out of training; the numbers are those of the database."""

    NONE = 0
    CONTRADICTION = 1
    INCONSISTENT = 2
    CONSTANT = 3


class Fate(IntEnum):
    """What became of an item of a batch."""

    STORED = 0
    DUPLICATE = 1
    CONFLICT = 2
    OVER_DAY = 3
    OVER_TOTAL = 4
    TOO_MANY_AGENTS = 5
    UNREGISTERED = 6


@dataclass(frozen=True)
class Feedback:
    """How useful one passage, given alone, was to one agent.

    Attributes:
        id: idempotency id, one for each item of an agent.
        query: the query that was ranked for.
        passage_id: the passage.
        agent: who says so.
        usefulness: the agent's utility, [0, 1].
        model_version: version that served the ranking; empty if none did.
        collection: where the passage is from; empty if from no collection.
        ranking: passages as they were served, best first; empty if it is not told.
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
        """16 bytes that tell one content from another, whatever the id. A replay has the same."""
        texts = (self.query, self.passage_id, self.model_version, self.collection, *self.ranking)
        # -0.0 + 0.0 is 0.0: equal numbers have equal digests.
        return _digest(texts, struct.pack("<d", self.usefulness + 0.0))

    @cached_property
    def judged(self) -> int:
        """What was judged, whoever did and whichever model served it: query and passage. 64 bits, signed."""
        return _signed(_digest((self.query, self.collection, self.passage_id)))

    @cached_property
    def query_key(self) -> int:
        """The query in 64 bits, signed, to count distinct ones."""
        return _signed(_digest((self.query,)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one item, and why it is kept out of training if it is stored."""

    fate: Fate
    flag: Flag = Flag.NONE


@dataclass(frozen=True, slots=True)
class StoredFeedback:
    """Feedback as it is stored.

    Attributes:
        sequence: its place in the order of storing, [1, inf).
        feedback: the item.
        flag: why it is kept out of training.
        recorded_at_us: when it was stored. Microseconds since 1970.
    """

    sequence: int
    feedback: Feedback
    flag: Flag
    recorded_at_us: int


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """An agent and how much it gave.

    Attributes:
        sequence: its place in the order agents were first heard of, [1, inf).
        agent: the agent.
        description: free text.
        registered_at_us: when it was registered; None if it only gave feedback. Microseconds since 1970.
        stored: items stored now.
        flagged: of them kept out of training.
        today: items stored since midnight UTC.
        mean_usefulness: of the items stored now; None without any.
        last_feedback_at_us: when its last item was stored; None if none was.
    """

    sequence: int
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
    """How much feedback is taken.

    Attributes:
        per_day: items of one agent in a day of UTC, [1, inf).
        total: items of one agent stored at a time, [1, inf).
        agents: agents a tenant may have, registered or not, [1, inf).
        registered_only: whether only agents that are registered may give feedback.
    """

    per_day: int = 100_000
    total: int = 1_000_000
    agents: int = 10_000
    registered_only: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """That passages were ranked for a query of an agent by a version.

    Attributes:
        key: 16 bytes of query, agent and version, see :func:`served_key`.
        passages: 8 bytes for each passage, ascending, see :func:`passage_keys`.
        served_at_us: when. Microseconds since 1970.
    """

    key: bytes
    passages: bytes
    served_at_us: int


def served_key(query: str, agent: Agent, model_version: str) -> bytes:
    """16 bytes that stand for who was served what by which version."""
    # The tenant that there was before there were others has the keys it had then.
    whose = () if agent.tenant == DEFAULT_TENANT else (agent.tenant,)
    return _digest((query, agent.task_id, agent.model_id, model_version, *whose))


def passage_keys(ids: Iterable[str]) -> list[bytes]:
    """8 bytes that stand for each passage, ascending."""
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
