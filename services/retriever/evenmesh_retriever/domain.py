"""Define the retriever's values: passages, scores, queries and results, without protos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from evenmesh_kit.rpc.policies import Policy, Target
from evenmesh_kit.security.caller import DEFAULT_TENANT

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
VectorArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Passage:
    """The unit that is retrieved. Ids are unique within a collection or request."""

    id: str
    title: str
    text: str
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Size of title and text. Bytes."""
        return len(self.title.encode()) + len(self.text.encode())

    @property
    def content(self) -> str:
        """What retrievers index: the title and the text."""
        return f"{self.title} {self.text}" if self.title and self.text else self.title or self.text


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Rows of passages with their scores, best first, equal scores by ascending passage id.

    Attributes:
        rows: zero-based rows of a snapshot or a list, ``[m]``.
        scores: finite scores in the retriever's unit, ``[m]``, descending.
    """

    rows: IntArray
    scores: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Unranked:
    """Every passage that may be found, with its score.

    Attributes:
        rows: zero-based rows of a snapshot, in an order that is the same each time, ``[m]``.
        scores: finite scores in the retriever's unit, ``[m]``.
    """

    rows: IntArray
    scores: FloatArray


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One of these values."""

    values: frozenset[str]


@dataclass(frozen=True, slots=True)
class TextRange:
    """Text between two others, both included, in the order of Unicode code points; None means no bound."""

    low: str | None
    high: str | None


@dataclass(frozen=True, slots=True)
class NumberRange:
    """A number between two others, both included; None means no bound. Other values are outside."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on one attribute; a passage without the attribute does not meet it."""

    attribute: str
    allowed: AnyOf | TextRange | NumberRange

    def met_by(self, value: str) -> bool:
        """Return whether a value of the attribute is allowed."""
        match self.allowed:
            case AnyOf(values):
                return value in values
            case TextRange(low, high):
                return (low is None or low <= value) and (high is None or value <= high)
            case NumberRange(low, high):
                # Comparisons with a nan are false, so that it is outside even without bounds.
                return (-inf if low is None else low) <= number_of(value) <= (inf if high is None else high)


def number_of(value: str) -> float:
    """Return the number that a value of an attribute is; nan if it is none."""
    try:
        return float(value)
    except ValueError:
        return nan


@dataclass(frozen=True, slots=True)
class Filter:
    """Passages that may be found: those that meet all of the conditions."""

    conditions: tuple[Condition, ...]

    def allows(self, attributes: Mapping[str, str]) -> bool:
        """Return whether a passage of these attributes may be found."""
        return all(
            condition.attribute in attributes and condition.met_by(attributes[condition.attribute])
            for condition in self.conditions
        )


@dataclass(frozen=True, slots=True)
class Draw:
    """How rankings are sampled: Plackett-Luce with exponent ``alpha`` (fair-rag, section 3.2)."""

    alpha: float
    """Fairness dial, [0, 100]; 0 is uniform. Of no meaning with a target."""
    num_rankings: int
    """Rankings, [1, 1000]."""
    seed: int
    """Seed of the request's generator, [0, 2^63 - 1]."""
    target: Target | None = None
    """What the dial is chosen to reach, for each query; None for ``alpha``."""


@dataclass(frozen=True, slots=True)
class Query:
    """A request to rank, checked before it runs."""

    text: str
    collection: str
    """Name of a collection; empty when candidates are given."""
    candidates: Sequence[Passage] | None
    """Passages sent with the request instead of a collection."""
    retriever: str
    """Name of a retriever; empty for the default."""
    depth: int | None
    """Size of the pool, [1, 1000]; None for the default."""
    k: int | None
    """Positions per ranking, [1, depth]; None for the default."""
    draw: Draw | None
    """None for one deterministic ranking."""
    with_inclusion: bool
    """Whether each candidate's probability of being among the first k is wanted."""
    stream_id: str
    """Name of the request for its generator; empty for the query."""
    filter: Filter | None = None
    """Passages that may be found; None for all."""
    tenant: str = DEFAULT_TENANT
    """Whose collections are meant."""
    whole: bool = False
    """Whether rankings are drawn from all of the collection instead of from a pool."""
    sizes: Sequence[int] = ()
    """Size of title and text of each of ``candidates``, if known. Bytes."""
    held_bytes: int = 0
    """What the request takes in memory. Bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Retrieval:
    """The answer to a :class:`Query`.

    Attributes:
        passages: the pool, best first; only the first k of it when that is all the rankings can show, and
            only what the rankings show when they are drawn from all of the collection.
        scores: score of each of ``passages``, in the retriever's unit.
        rankings: indices into ``passages``, ``[rankings, k]``.
        log_probabilities: natural logarithm of each sampled ranking's probability; None when deterministic.
        inclusion: exact probability of each of ``passages`` to be among the first k; None if not asked for.
        version: index version that answered; empty for candidates of the request.
        retriever: name of the retriever that answered.
        note: what the name of the retriever does not say, such as vectors that are still to come.
        policy: the policy of a target; None without one, and where nothing was found.
        as_of: when ``version`` was last known to be the current one; None where it is.
    """

    passages: Sequence[Passage]
    scores: FloatArray
    rankings: IntArray
    log_probabilities: FloatArray | None
    inclusion: FloatArray | None
    version: str
    retriever: str
    note: str = ""
    policy: Policy | None = None
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class RetrieverInfo:
    """What a retriever is and runs on."""

    name: str
    description: str
    """One line on formula, engine and model."""
    engine: str
    model: str
    """Empty where there is none."""
    device: str
    """``cpu`` or ``cuda:0``."""


@dataclass(frozen=True, slots=True)
class Lexical:
    """How the text of a collection is indexed for BM25; fixed for as long as it exists."""

    analyzer: str = ""
    """Name of the analyzer as it is given; empty for the default of what keeps the collection."""
    k1: float | None = None
    """BM25's k1, [0, 10]; None for that of the retriever."""
    b: float | None = None
    """BM25's b, [0, 1]; None for that of the retriever."""


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """The current state of a collection."""

    name: str
    version: str
    num_passages: int
    size_bytes: int
    encoder: str
    """Empty without a dense index."""
    updated_at: datetime
    description: str
    analyzer: str
    """Analyzer as recorded: the name with its version."""
    lexical: Lexical = Lexical()
    dense_kind: str = ""
    """Kind of its largest dense index; empty without one."""
    dense_recall: float | None = None
    """Recall@100 of that index, [0, 1]."""
    num_segments: int = 0
    num_tombstones: int = 0
    """Passages that are gone and still on disk."""
    embedded: float = 0.0
    """Share of its passages that have a vector, [0, 1]."""
    warning: str = ""
    """What is wrong with it; empty if nothing is."""
    as_of: datetime | None = None
    """When this was last known to be the current state, where another process writes; None where this one
    does."""


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest did. Unit of the counts: passages."""

    collection: CollectionInfo
    added: int
    replaced: int
    unchanged: int


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """What a deletion did; ``missing`` counts distinct ids that were not there."""

    collection: CollectionInfo
    deleted: int
    missing: int
