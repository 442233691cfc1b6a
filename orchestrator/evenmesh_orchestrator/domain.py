"""Types of the orchestrator's flow: asks, what each stage finds, and the events that callers receive.

Whatever the orchestrator only passes on stays the message it arrived in: passages, answers, labels and the
parts of a reply.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from evenmesh.common.v1.common_pb2 import Agent, Passage, Policy
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.generator.v1.generator_service_pb2 import Answer, Decoding, GenerateRequest, Turn
from evenmesh.orchestrator.v1 import orchestrator_service_pb2 as pb
from evenmesh.retriever.v1 import retriever_service_pb2 as retriever_pb
from evenmesh.wire.errors import MeshError
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_kit.rpc.policies import Target
from evenmesh_orchestrator.expressions.sources import ResolvedExpression

_WITHOUT_PASSAGES: Final = frozenset(
    {generator_pb.AUGMENTATION_RETRIEVAL_FREE, generator_pb.AUGMENTATION_PARAMETRIC_KNOWLEDGE}
)


class EnumNames(Protocol):
    """The names of an enum of the contract."""

    def Name(self, number: Any) -> str: ...  # noqa: N802 - protobuf's name


def word_of(enum: EnumNames, value: int) -> str:
    """Return an enum's value as a lower-case word: ``in-prompt`` for ``AUGMENTATION_IN_PROMPT``."""
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    return enum.Name(value).removeprefix(prefix).lower().replace("_", "-")


class Stage(StrEnum):
    """A stage of an ask; named as in ``evenmesh.common.v1.Stage``."""

    RETRIEVE = "retrieve"
    RERANK = "rerank"
    GENERATE = "generate"
    OBSERVE = "observe"


class Action(StrEnum):
    """What the orchestrator does when a stage fails; named as in ``Degradation.Action``, except ``FAIL``."""

    FAIL = "fail"
    RETRIEVER_ORDER = "retriever-order"
    NO_CONTEXT = "no-context"
    NO_ANSWER = "no-answer"
    SOURCE_LEFT_OUT = "source-left-out"
    LOCAL_VOTE = "local-vote"
    OBSERVATION_QUEUED = "observation-queued"
    OBSERVATION_DROPPED = "observation-dropped"
    NO_REPORT = "no-report"
    HISTORY_WORDS = "history-words"
    NO_BALANCE = "no-balance"


@dataclass(frozen=True, slots=True)
class Balance:
    """Controller of exposure over time.

    ``strength`` is in score ranges per context owed, [0, 10], ``limit`` in score ranges, [0, 1], and
    ``half_life_days`` in [0.01, 3650].
    """

    strength: float = 0.05
    limit: float = 0.25
    half_life_days: float = 30.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """Plackett–Luce sampling: ``alpha`` in [0, 100], ``num_rankings`` in [1, 1000], ``seed`` in [0, 2^63).

    With a ``target`` the alpha is None until one is found for the scores of the query.
    """

    alpha: float | None
    num_rankings: int
    seed: int
    target: Target | None = None
    balance: Balance | None = None
    """Fairness over time; None for none, and always with a target."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question and how to answer it, checked, with every default filled in.

    ``candidates`` is None where ``collection`` is searched; ``web`` names the web source to search instead of
    ``collection``. ``names_reranker`` is false where the reranker is the default. Counts are passages, and
    1 ≤ ``k`` ≤ ``rerank_depth`` ≤ ``depth`` ≤ 1000; ``num_answers`` is in [0, number of rankings].
    ``expression`` replaces the search of ``collection``. The labels have a metric and sorted, distinct ids.
    """

    id: str
    question: str
    collection: str
    candidates: Sequence[Passage] | None
    retriever: str
    reranker: str
    names_reranker: bool
    model: str
    depth: int
    k: int
    rerank_depth: int
    sampling: Sampling | None
    sampling_stage: pb.SamplingStage.ValueType
    augmentation: generator_pb.Augmentation.ValueType
    decoding: Decoding
    num_answers: int
    agent: Agent
    run_id: str
    query_id: str
    labels: evaluator_pb.Labels
    observe: bool
    want_report: bool
    filter: retriever_pb.Filter | None = None
    expression: ResolvedExpression | None = None
    web: str = ""
    id_prefix: str = ""
    """Prefix of the ids of retrieved passages."""
    fusion: float | None = None
    """Weight of the retriever's scores beside the reranker's, [0, 10]; None for that of its model."""
    search: str = ""
    """Text to retrieve and rank passages for; empty for the question."""
    adds_words: bool = False
    """Whether ``search``, if any, is the question followed by words of earlier turns."""
    turns: Sequence[Turn] = ()
    """Earlier turns for the model, oldest first; none with a template that does not show them."""
    template: str = ""
    conversation: (
        Callable[[Pool, Sequence[Answered]], Awaitable[evaluator_pb.ObservedConversation]] | None
    ) = None
    """Return the conversation including this ask, for the observation."""
    drawn_seed: int | None = None
    """Seed that was drawn for the ask, which gave none; None if it draws nothing, or gave its own."""

    @property
    def search_text(self) -> str:
        """The text to retrieve and rank passages for."""
        return self.search or self.question

    @property
    def reads_passages(self) -> bool:
        """Whether the model receives passages."""
        return self.augmentation not in _WITHOUT_PASSAGES

    def prompt(self, passages: Iterable[Passage]) -> GenerateRequest:
        """Return the request to answer the question from some passages."""
        return GenerateRequest(
            question=self.question,
            passages=passages,
            model=self.model,
            augmentation=self.augmentation,
            decoding=self.decoding,
            turns=self.turns,
            template=self.template,
            contextual_question=self.search if self.adds_words else "",
        )


@dataclass(frozen=True, slots=True)
class Pool:
    """What the retriever found: passages best first, scores [n], rankings [N, depth] of indices into both.

    ``log_probabilities`` is [N] in nats, or None where the ranking is deterministic. ``policy`` is that of a
    target, None without one.
    """

    passages: Sequence[Passage]
    scores: FloatArray
    rankings: IntArray
    log_probabilities: FloatArray | None
    retriever: str
    index_version: str
    policy: Policy | None = None

    def rows(self, row: IntArray) -> list[Passage]:
        """Return the passages at some indices."""
        return [self.passages[index] for index in row]


_STANDARD: Final = 20


@dataclass(frozen=True, slots=True)
class FirstStage:
    """The retriever's scores [m] of passages to rerank, and mean and standard deviation of its best 20.

    ``weight``, [0, 10], of them beside the reranker's log-odds; None for that of the reranker's model.
    """

    scores: FloatArray
    mean: float
    deviation: float
    weight: float | None

    @classmethod
    def of(cls, scores: FloatArray, pool: FloatArray, weight: float | None) -> FirstStage | None:
        """Return it for scores of a pool, itself best first; None where they are not to be fused with.

        Mean and deviation are those of the best 20, for which weights are learned, whatever is reranked.
        """
        best = pool[:_STANDARD]
        if weight == 0 or not len(best) or not (np.isfinite(scores).all() and np.isfinite(best).all()):
            return None
        # The deviation of equal scores would be that of rounding.
        deviation = float(best.std()) if best.max() > best.min() else 0.0
        return cls(scores, float(best.mean()), deviation, weight)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others."""
        return (self.scores.tobytes(), self.mean, self.deviation, self.weight)


@dataclass(frozen=True, slots=True)
class Relevance:
    """Scores [m] in [0, 1] of a reranker, in the order of the passages it received.

    ``fusion`` is the weight of the retriever's scores in them; 0 if they are the reranker's alone.
    """

    scores: FloatArray
    reranker: str
    model_version: str
    fusion: float = 0.0


@dataclass(frozen=True, slots=True)
class Contexts:
    """Contexts for the generator: rows [N, k] of indices into the pool, best first, one per sample.

    ``log_probabilities`` [N] are those of the sampled rankings the contexts were made from, in nats.
    """

    rows: IntArray
    log_probabilities: FloatArray | None


EMPTY_POOL: Final = Pool((), np.empty(0), np.empty((1, 0), dtype=np.int64), None, "", "")
"""A pool without passages."""
EMPTY_CONTEXTS: Final = Contexts(np.empty((1, 0), dtype=np.int64), None)
"""One context without passages."""


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Event: retrieval is done. ``collection`` is the one that was searched; empty for other passages."""

    pool: Pool
    collection: str = ""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Event: ranking is done. In an ensemble ``member`` names the expression, as in the next two events."""

    contexts: Contexts
    reranker: str = "none"
    model_version: str = ""
    member: str = ""
    fusion: float = 0.0
    policy: Policy | None = None
    """The policy of a target, None without one."""
    relevance: FloatArray | None = None
    """Relevance of each passage of the pool, 0 for those that were not scored; None if unknown."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Event: an answer, the samples that showed exactly its context, and the passages that contain it."""

    answer: Answer
    samples: tuple[int, ...]
    citations: Sequence[pb.Citation]
    member: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: a context has no answer, and why."""

    samples: tuple[int, ...]
    error: MeshError
    member: str = ""


@dataclass(frozen=True, slots=True)
class Degraded:
    """Event: a stage failed, and ``action`` replaced it."""

    stage: Stage
    action: Action
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the ask is over. Times in milliseconds."""

    ask_id: str
    run_id: str
    stage_ms: Mapping[Stage, float]
    total_ms: float
    drawn_seed: int | None = None


Event: TypeAlias = (
    Retrieved | Ranked | pb.Delta | Answered | Failed | pb.VoteEvent | pb.ExposureReport | Degraded | Finished
)
"""An event of an ask or an ensemble."""

AuditEvent: TypeAlias = pb.AuditSettled | pb.AuditSample | pb.ExposureReport | Degraded | Finished
"""An event of an audit."""


@dataclass(frozen=True, slots=True)
class EnsembleAsk:
    """One question for several expressions, each as a separate ask.

    ``vote`` has one weight per member. ``name`` comes from the settings, or lists the expressions.
    """

    ask: Ask
    members: tuple[Ask, ...]
    vote: evaluator_pb.VoteRequest
    name: str


@dataclass(frozen=True, slots=True)
class Audit:
    """A labelled query to sample rankings for, checked, with every default filled in.

    ``sampling`` holds the number of rankings and the seed; its alpha has no meaning. ``alphas`` are 1 to 16
    different values in [0, 100]; ``num_oracle`` is in [0, 1000]; ``until_width`` is in (0, 1), None to draw
    every ranking; ``level`` is in (0, 1). The labels of ``ask`` say which passages are useful.
    """

    ask: Ask
    sampling: Sampling
    alphas: tuple[float, ...]
    num_oracle: int
    until_width: float | None
    level: float

    @property
    def num_rankings(self) -> int:
        """Largest number of rankings drawn, including the deterministic one."""
        return 1 + len(self.alphas) * self.sampling.num_rankings + self.num_oracle


@dataclass(frozen=True, slots=True)
class Observation:
    """What one ask showed and answered; ``observed_at_us`` is microseconds since 1970 (UTC).

    For the vote of an ensemble ``retrievers`` names the members, the samples of the answers are indices into
    it, and ``vote_winner`` is an index into the answers.
    """

    ask: Ask
    pool: Pool
    ranked: Ranked
    answers: Sequence[Answered]
    stage_ms: Mapping[Stage, float]
    degradations: Sequence[Degraded] = ()
    observed_at_us: int = 0
    conversation: evaluator_pb.ObservedConversation | None = None
    retrievers: tuple[str, ...] = ()
    vote_winner: int | None = None
    merit: FloatArray | None = None
    """Share of a context that each passage of the pool deserves; None if unknown."""
