"""What the orchestrator speaks: an ask, what its stages find, and the events it is told by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Protocol, TypeAlias

from meshkit.errors import MeshError
from orchestrator.ensembles.definitions import Voting
from orchestrator.expressions.sources import Recipe
from ragcore.arrays import FloatArray, IntArray


class Passage(Protocol):
    """A passage as it came from a client or the retriever.

    The orchestrator reads passages and hands them on: what crosses it is the very message that arrived, so
    that a hundred passages are not taken apart and put together again for every stage.
    """

    @property
    def id(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...


class Answer(Protocol):
    """A finished answer as it came from the generator; handed on like a passage."""

    @property
    def text(self) -> str: ...
    @property
    def log_probability(self) -> float: ...
    @property
    def model(self) -> str: ...
    @property
    def model_version(self) -> str: ...


class Stage(StrEnum):
    """A stage of the flow of an ask."""

    RETRIEVE = "retrieve"
    RERANK = "rerank"
    GENERATE = "generate"
    OBSERVE = "observe"


class Action(StrEnum):
    """What is done when a stage fails."""

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


class SamplingStage(Enum):
    """Over whose scores rankings are sampled."""

    RETRIEVER = "retriever"
    RERANKER = "reranker"


class Augmentation(Enum):
    """How passages are handed to the model; two of them hand over none."""

    DEFAULT = "default"
    IN_PROMPT = "in-prompt"
    FUSION_IN_DECODER = "fusion-in-decoder"
    RETRIEVAL_FREE = "retrieval-free"
    PARAMETRIC_KNOWLEDGE = "parametric-knowledge"
    COMPRESSION = "compression"

    @property
    def reads_passages(self) -> bool:
        """Whether the model is given passages."""
        return self not in (Augmentation.RETRIEVAL_FREE, Augmentation.PARAMETRIC_KNOWLEDGE)


class UtilityMetric(StrEnum):
    """How one answer is scored against references; every value lies in [0, 1]."""

    EXACT_MATCH = "exact_match"
    TOKEN_F1 = "token_f1"  # noqa: S105 - a metric, not a secret
    ROUGE1 = "rouge1"
    ROUGE2 = "rouge2"
    ROUGE_L = "rougeL"
    ACCURACY = "accuracy"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Plackett–Luce sampling: ``alpha`` in [0, 100], ``num_rankings`` in [1, 1000], ``seed`` in [0, 2^63)."""

    alpha: float
    num_rankings: int
    seed: int


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen; None leaves the choice to the generator."""

    num_beams: int | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Agent:
    """On whose behalf is asked; empty ids are unknown."""

    task_id: str = ""
    model_id: str = ""


@dataclass(frozen=True, slots=True)
class Labels:
    """What is known to be right; ``useful`` is None where usefulness is unknown."""

    useful: frozenset[str] | None = None
    references: tuple[str, ...] = ()
    metric: UtilityMetric = UtilityMetric.TOKEN_F1


@dataclass(frozen=True, slots=True)
class Exchange:
    """An earlier turn of a conversation: what was asked, and what was answered."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A question and how to answer it, checked and with every default filled in.

    ``candidates`` is None where ``collection`` is asked, ``names_reranker`` false where it is the default.
    Counts are passages, and 1 ≤ ``k`` ≤ ``rerank_depth`` ≤ ``depth`` ≤ 1000; ``num_answers`` is in [0, number
    of rankings]. ``recipe`` is the expression to run instead of asking ``collection``; ``filter`` is the
    retriever's, carried and never read; ``web`` is asked in place of ``collection`` where it is not empty.
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
    sampling_stage: SamplingStage
    augmentation: Augmentation
    decoding: Decoding
    num_answers: int
    agent: Agent
    run_id: str
    query_id: str
    labels: Labels
    observe: bool
    want_report: bool
    filter: object | None = None
    recipe: Recipe | None = None
    web: str = ""
    id_prefix: str = ""
    """What is put before the ids of the passages that are found."""
    looked_for: str = ""
    """What passages are found and ranked for, where that is not the question itself."""
    turns: tuple[Exchange, ...] = ()
    """Earlier turns for the model, oldest first; only with a template that shows them."""
    template: str = ""
    judge: Callable[[Pool, Sequence[Answered]], object] | None = None
    """Makes of what was found and said the conversation so far, for the observation; carried, never read."""

    @property
    def wording(self) -> str:
        """What passages are found and ranked for."""
        return self.looked_for or self.question


@dataclass(frozen=True, slots=True)
class Pool:
    """What the retriever found: passages best first, scores [n], rankings [N, depth] of indices into both.

    ``log_probabilities`` is [N] in nats, or None where the ranking is deterministic.
    """

    passages: Sequence[Passage]
    scores: FloatArray
    rankings: IntArray
    log_probabilities: FloatArray | None
    retriever: str
    index_version: str


@dataclass(frozen=True, slots=True)
class Relevance:
    """What the reranker thinks: scores [m] in [0, 1] in the order of the passages it was given."""

    scores: FloatArray
    reranker: str
    model_version: str


@dataclass(frozen=True, slots=True)
class Contexts:
    """What the generator is given: rows [N, k] of indices into the pool, best first, one per sample.

    ``log_probabilities`` [N] are those of the sampled rankings the contexts were made from, in nats.
    """

    rows: IntArray
    log_probabilities: FloatArray | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question with the passages to answer it from."""

    question: str
    passages: Sequence[Passage]
    model: str
    augmentation: Augmentation
    decoding: Decoding
    turns: tuple[Exchange, ...] = ()
    template: str = ""


@dataclass(frozen=True, slots=True)
class Citation:
    """A passage that has the answer: its rank in the context from 1, and the span in its text if any."""

    passage_id: str
    provider: str
    rank: int
    start: int | None
    end: int | None


@dataclass(frozen=True, slots=True)
class ProviderShare:
    """Expected exposure of a provider, its share of all exposure, and its target where labels give one."""

    name: str
    exposure: float
    share: float
    target: float | None


@dataclass(frozen=True, slots=True)
class Exposure:
    """Expected exposure [n] of the pool and what follows from it; None where it is undefined."""

    per_passage: FloatArray
    ee_d: float
    ee_r: float | None
    ee_d_norm: float
    ee_r_norm: float | None
    expected_utility: float | None
    providers: Sequence[ProviderShare]


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The pool is there."""

    pool: Pool


@dataclass(frozen=True, slots=True)
class Ranked:
    """What the generator is given is settled."""

    contexts: Contexts
    reranker: str
    model_version: str
    member: str = ""
    """The expression it is of, in an ensemble; so of the next two."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of the first answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """A finished answer, the samples that showed exactly its context, and the passages that have it."""

    answer: Answer
    samples: tuple[int, ...]
    citations: Sequence[Citation]
    member: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A context without an answer, and why."""

    samples: tuple[int, ...]
    error: MeshError
    member: str = ""


@dataclass(frozen=True, slots=True)
class Voted:
    """How an ensemble votes so far: who leads, who is without an answer, and whether that could change it."""

    answer: str
    member: str
    num_answers: int
    missing: tuple[str, ...]
    may_change: bool
    final: bool


@dataclass(frozen=True, slots=True)
class Reported:
    """Exposure of this ask; ``run`` is the evaluator's report of the run, carried and never read."""

    exposure: Exposure
    run: object | None


@dataclass(frozen=True, slots=True)
class Degraded:
    """A stage failed, and what was done instead."""

    stage: Stage
    action: Action
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The ask is over; times in milliseconds."""

    ask_id: str
    run_id: str
    stage_ms: Mapping[Stage, float]
    total_ms: float


@dataclass(frozen=True, slots=True)
class EnsembleAsk:
    """One question for several expressions, each as an ask of its own; ``voting`` has a weight for each.

    ``name`` is that of the settings, or made of the expressions.
    """

    ask: Ask
    members: tuple[Ask, ...]
    voting: Voting
    name: str


class Policy(Enum):
    """What made the rankings of an audit: draws at a fairness dial, no draw at all, or an oracle."""

    SAMPLED = "sampled"
    DETERMINISTIC = "deterministic"
    ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Audit:
    """A labelled query to sample rankings of, checked and with every default filled in.

    ``ask`` and ``sampling`` have an alpha that means nothing, and the labels know what is useful. ``alphas``
    are 1 to 16 different ones in [0, 100]; ``num_oracle`` is in [0, 1000]; ``until_width`` is in (0, 1), None
    to draw all; ``level`` in (0, 1).
    """

    ask: Ask
    sampling: Sampling
    alphas: tuple[float, ...]
    num_oracle: int
    until_width: float | None
    level: float

    @property
    def num_rankings(self) -> int:
        """Most rankings that are drawn, the deterministic one counted."""
        return 1 + len(self.alphas) * self.sampling.num_rankings + self.num_oracle


@dataclass(frozen=True, slots=True)
class Settled:
    """What is audited is settled."""

    pool: Pool
    reranker: str
    model_version: str
    num_contexts: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one ranking of an audit did; ``error`` says why it has no answer where one was wanted."""

    policy: Policy
    alpha: float | None
    sample: int
    passage_ids: tuple[str, ...]
    log_probability: float | None
    answer: Answer | None
    error: MeshError | None
    utility: float | None


@dataclass(frozen=True, slots=True)
class LevelReported:
    """What the rankings of one policy and fairness dial did together; None where it is undefined."""

    policy: Policy
    alpha: float | None
    exposure: Exposure
    num_rankings: int
    num_answered: int
    u_max: float | None
    normalized_expected_utility: float | None
    expected_utility_interval: tuple[float, float] | None
    stopped_early: bool
    exact_ee_d_norm: float | None
    exact_ee_r_norm: float | None


Event: TypeAlias = Retrieved | Ranked | Delta | Answered | Failed | Voted | Reported | Degraded | Finished


AuditEvent: TypeAlias = Settled | Sampled | LevelReported | Degraded | Finished


@dataclass(frozen=True, slots=True)
class Observation:
    """What one ask showed and said; ``observed_at_us`` is microseconds since 1970 (UTC).

    Of an ensemble's vote ``retrievers`` names the members, whose places the samples of the answers are, and
    ``vote_winner`` is an index into the answers.
    """

    ask: Ask
    pool: Pool
    ranked: Ranked
    answers: Sequence[Answered]
    stage_ms: Mapping[Stage, float]
    degradations: Sequence[Degraded] = ()
    observed_at_us: int = field(default=0)
    conversation: object | None = None
    retrievers: tuple[str, ...] = ()
    vote_winner: int | None = None
