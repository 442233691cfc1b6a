"""Feedback of agents on passages; agents, model versions and training as the mesh describes them."""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from evenmesh.files.read_error import ReadError
from evenmesh.types.request import Agent
from evenmesh.wire.errors import MeshError

BATCH: Final = 1_000
"""Most items of one call."""

MAX_LINE_BYTES: Final = 1 << 20
"""Longest line of a file of feedback."""
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

Flag = Literal["", "contradiction", "inconsistent", "constant"]
"""Why feedback is kept out of training; empty if it is not."""

TrainingState = Literal["idle", "running", "failed"]
"""What a trainer is doing."""


@dataclass(frozen=True, slots=True)
class Feedback:
    """How useful one passage, given alone, was to one agent.

    Attributes:
        query: the query that was ranked for.
        passage_id: the passage.
        usefulness: the agent's utility with it, 0 to 1.
        agent: who says so; not both ids empty.
        model_version: version of the model that served the ranking, as the answer named it.
        collection: where the passage is from; empty if from no collection, and then no trainer learns from
            it.
        ranking: passages as they were served, best first, the passage among them; empty if unknown.
        id: idempotency id. Without one it is made of all the rest: the same feedback sent again is the same
            item, and one that is to count twice needs ids of its own.
    """

    query: str
    passage_id: str
    usefulness: float
    agent: Agent
    model_version: str = ""
    collection: str = ""
    ranking: Sequence[str] = ()
    id: str = ""

    @property
    def key(self) -> str:
        """Return the idempotency id that is sent."""
        if self.id:
            return self.id
        content = [
            self.query,
            self.passage_id,
            float(self.usefulness),
            self.agent.task_id,
            self.agent.model_id,
            self.model_version,
            self.collection,
            *self.ranking,
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class DeletedAgent:
    """What was deleted of an agent.

    Attributes:
        deleted: whether there was such an agent, or a model version of it.
        num_feedback: items of its feedback that were deleted.
        num_models: model versions of its own that were deleted.
    """

    deleted: bool
    num_feedback: int
    num_models: int


@dataclass(frozen=True, slots=True)
class FeedbackResult:
    """Result of one item.

    Attributes:
        id: its idempotency id.
        duplicate: it was stored before; nothing was changed.
        flagged: it is stored, but kept out of training.
        error: why it was refused; None if it is stored.
    """

    id: str
    duplicate: bool
    flagged: bool
    error: MeshError | None


@dataclass(frozen=True, slots=True, repr=False)
class Recorded:
    """The outcome of recording feedback; stored items are durable.

    Attributes:
        results: of each item, in order.
    """

    results: tuple[FeedbackResult, ...]

    def __repr__(self) -> str:
        """Return the counts: there may be thousands of items."""
        counts = f"stored={self.stored}, duplicates={self.duplicates}, flagged={self.flagged}"
        return f"Recorded({counts}, refused={len(self.refused)})"

    @property
    def stored(self) -> int:
        """Return the number of items that are new."""
        return sum(one.error is None and not one.duplicate for one in self.results)

    @property
    def duplicates(self) -> int:
        """Return the number of items that were stored before."""
        return sum(one.duplicate for one in self.results)

    @property
    def flagged(self) -> int:
        """Return the number of new items that are kept out of training."""
        return sum(one.flagged and not one.duplicate for one in self.results)

    @property
    def refused(self) -> tuple[FeedbackResult, ...]:
        """Return the items that are not stored, with their errors."""
        return tuple(one for one in self.results if one.error is not None)


@dataclass(frozen=True, slots=True)
class StoredFeedback:
    """A stored item of feedback.

    Attributes:
        feedback: the item.
        recorded_at: when, UTC.
        flag: why it is kept out of training.
        sequence: its place in the order of storing.
    """

    feedback: Feedback
    recorded_at: datetime
    flag: Flag
    sequence: int


@dataclass(frozen=True, slots=True)
class AgentSummary:
    """An agent and how much feedback it gave.

    Attributes:
        agent: the agent.
        registered_at: when it was registered, UTC; None if it only gave feedback.
        description: free text.
        known_to_model: whether the served model has separate tokens for it.
        num_feedback: items stored now.
        num_flagged: stored items that are not used for training.
        num_today: items stored since midnight UTC.
        mean_usefulness: of the items stored now, 0 to 1; None without any.
        last_feedback_at: when its last item was stored, UTC; None if none was.
    """

    agent: Agent
    registered_at: datetime | None
    description: str
    known_to_model: bool
    num_feedback: int
    num_flagged: int
    num_today: int
    mean_usefulness: float | None
    last_feedback_at: datetime | None


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a learned reranker.

    Attributes:
        version: its name.
        serving: whether it is served now.
        created_at: when it was made, UTC.
        provenance: training that made it.
        parent_version: version that it was trained from; empty if there is none.
        metrics: measured values, by name.
        agent: whose own it is; None if it serves all agents.
        base_version: the version that an adapter changes; empty for a whole model.
        size_bytes: its size on disk.
        agent_tokens: tokens of tasks and models that it has.
    """

    version: str
    serving: bool
    created_at: datetime
    provenance: str
    parent_version: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    agent: Agent | None = None
    base_version: str = ""
    size_bytes: int = 0
    agent_tokens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Training:
    """One training: that for all agents, or one agent's own.

    Attributes:
        agent: whose; None for the model that serves all agents.
        state: what its trainer is doing.
        progress: share that is done, 0 to 1.
        message: one line.
        pending_feedback: items that wait for it.
        pending_queries: distinct queries among them.
        candidate_version: the last version it made that was not promoted.
        updated_at: when its trainer last reported, UTC; None if never.
    """

    agent: Agent | None
    state: TrainingState
    progress: float
    message: str
    pending_feedback: int
    pending_queries: int
    candidate_version: str
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """State of trainings.

    Attributes:
        state: what the trainer is doing.
        pending_feedback: items that wait.
        progress: share of the running training that is done, 0 to 1.
        message: one line.
        trainings: one by one; those that run first.
    """

    state: TrainingState
    pending_feedback: int
    progress: float
    message: str
    trainings: tuple[Training, ...]


def read(lines: Iterable[bytes], path: Path) -> Iterator[Feedback]:
    """Yield the feedback of JSON lines.

    A line is an object with ``query``, ``passage_id``, ``usefulness`` and ``agent`` (an object of ``task_id``
    and ``model_id``), and perhaps ``id``, ``model_version``, ``collection`` and ``ranking``. Blank lines are
    skipped; unknown and missing members are errors. The mesh checks bounds.

    Args:
        lines: the file, line by line.
        path: its name, for errors.

    Raises:
        ReadError: at the first line that is not feedback; or none is.
    """
    empty = True
    for number, raw in enumerate(lines, start=1):
        if number == 1:
            if raw.startswith(_GZIP_MAGIC):
                raise ReadError(path, None, "is compressed; use: gunzip -c FILE | evenmesh feedback record -")
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        if not raw.strip():
            continue
        empty = False
        try:
            if len(raw) > MAX_LINE_BYTES:
                raise ValueError(f"is longer than {MAX_LINE_BYTES:,} bytes")
            yield from_record(json.loads(raw.decode()))
        except json.JSONDecodeError as exc:
            raise ReadError(path, number, f"is not JSON: {exc.msg} at column {exc.colno}") from exc
        except UnicodeDecodeError as exc:
            raise ReadError(path, number, f"is not UTF-8 at byte {exc.start + 1}") from exc
        except RecursionError as exc:
            raise ReadError(path, number, "is nested too deeply") from exc
        except ValueError as exc:
            raise ReadError(path, number, str(exc)) from exc
    if empty:
        raise ReadError(path, None, "has no feedback")


_TEXTS: Final = ("query", "passage_id", "model_version", "collection", "id")
_REQUIRED: Final = ("query", "passage_id", "usefulness", "agent")


def from_record(record: Any) -> Feedback:
    """Return the feedback of an object with the members of :func:`read`.

    Raises:
        ValueError: a member is missing, unknown, or of a wrong type.
    """
    if not isinstance(record, dict):
        raise ValueError("must be a JSON object")
    for name in _REQUIRED:
        if name not in record:
            raise ValueError(f"has no {name!r}")
    if unknown := sorted(record.keys() - {*_TEXTS, *_REQUIRED, "ranking"}):
        raise ValueError(f"has an unknown field: {unknown[0]!r}")
    for name in _TEXTS:
        if not isinstance(record.get(name, ""), str):
            raise ValueError(f"{name!r} must be a string")
    usefulness, agent, ranking = record["usefulness"], record["agent"], record.get("ranking", [])
    is_number = isinstance(usefulness, int | float) and not isinstance(usefulness, bool)
    if not is_number or not abs(usefulness) <= sys.float_info.max:
        raise ValueError("'usefulness' must be a number from 0 to 1")
    if (
        not isinstance(agent, dict)
        or not set(agent) <= {"task_id", "model_id"}
        or not all(isinstance(one, str) for one in agent.values())
    ):
        raise ValueError("'agent' must be an object of 'task_id' and 'model_id', which are strings")
    if not isinstance(ranking, list) or not all(isinstance(one, str) for one in ranking):
        raise ValueError("'ranking' must be a list of strings")
    texts = {name: record[name] for name in _TEXTS if name in record}
    return Feedback(**texts, usefulness=float(usefulness), agent=Agent(**agent), ranking=tuple(ranking))
