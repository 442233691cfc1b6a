"""The generator's domain: requests, passages, decoding, answers, models."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Augmentation(enum.Enum):
    """How passages are passed to the model; the values are for people to read.

    With the last two the model writes a document first, of its own or a summary of the passages, and answers
    from it (Li et al., 2024, section 2.1).
    """

    IN_PROMPT = "in-prompt"
    FUSION_IN_DECODER = "fusion-in-decoder"
    RETRIEVAL_FREE = "retrieval-free"
    PARAMETRIC_KNOWLEDGE = "parametric-knowledge"
    COMPRESSION = "compression"


class FinishReason(enum.Enum):
    """Why the model stopped."""

    STOP = "stop"
    LENGTH = "length"


class Normalization(enum.Enum):
    """Over which tokens P(True) is normalised."""

    TRUE_FALSE = "true-false"
    VOCABULARY = "vocabulary"


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage as a model reads it."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Turn:
    """An earlier turn of a conversation."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen.

    ``num_beams`` [1, 16], 1 is greedy; ``beams_named``: whether the caller names them, otherwise a model that
    can search fewer does; ``max_new_tokens`` [1, 4096]; ``temperature`` [0, 10], 0 means no
    sampling, and sampling has one beam; ``top_p`` (0, 1]; ``seed`` [0, 2^63); ``stop``: texts that end the
    answer, at most 8 of 1 to 128 bytes.
    """

    num_beams: int = 1
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    beams_named: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A question, its passages (best first) and how to answer.

    ``augmentation`` None and ``template`` "" leave the choice to the model; ``turns``, oldest first, are read
    by models with templates; ``tenant`` owns what the model keeps of it, empty where there are no tenants.
    ``contextual_question``, if any, is read in place of ``question`` by models without templates, up to what
    they can read.
    """

    question: str
    passages: tuple[Passage, ...] = ()
    model: str = ""
    augmentation: Augmentation | None = None
    template: str = ""
    decoding: Decoding = field(default_factory=Decoding)
    turns: tuple[Turn, ...] = ()
    tenant: str = ""
    contextual_question: str = ""


@dataclass(frozen=True, slots=True)
class RelevanceRequest:
    """A question and passages to judge.

    ``template`` "" leaves the prompt to the model; ``tenant`` as of :class:`GenerationRequest`.
    """

    question: str
    passages: tuple[Passage, ...]
    normalization: Normalization = Normalization.TRUE_FALSE
    template: str = ""
    turns: tuple[Turn, ...] = ()
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Best:
    """How many of the best passages are wanted, and how sure it must be that they are the best.

    ``count`` [1, number of passages]; ``tolerance`` [0, 1]: by how much a passage that is left out may be
    more relevant than one of them.
    """

    count: int
    tolerance: float = 0.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What an answer cost the model that wrote it.

    Seconds from the request's arrival at the model, [0, inf): ``queue_s`` until it was taken up,
    ``first_token_s`` until its first token, ``total_s`` until its last. Tokens of the prompt:
    ``computed_tokens``, and ``reused_tokens`` whose encodings were cached. ``batch_rows``: most rows
    (beams counted) computed together while it was written.
    """

    queue_s: float = 0.0
    first_token_s: float = 0.0
    total_s: float = 0.0
    computed_tokens: int = 0
    reused_tokens: int = 0
    batch_rows: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """Where an answer that was copied stands.

    ``passage``: index into the request's passages, [0, 99]; ``start``, ``end``: characters of its text, end
    exclusive, [0, 65536].
    """

    passage: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    ``prompt_tokens`` and ``completion_tokens`` count what was read and written, the end token included;
    ``log_probability`` is the sum, in nats, over the written tokens, of the model's own distribution (before
    temperature, nucleus and forced tokens); ``dropped_passages`` did not fit and were left out, last ones
    first; ``cut_passages`` were shown, but cut at their end; ``dropped_turns`` were left out, oldest first,
    or have no place in the model's own template; ``cut_question``: whether only a part of the question was
    read;
    ``confidence``: calibrated probability that it is right, [0, 1], None of models that have none; ``span``:
    where the text stands, None unless it is copied from one passage;
    ``model_version`` is that of the model that answered, empty where :class:`ModelDescription` states it;
    ``cost`` does not take part in comparisons.
    """

    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    log_probability: float
    dropped_passages: int = 0
    cut_passages: int = 0
    dropped_turns: int = 0
    cut_question: bool = False
    confidence: float | None = None
    span: Span | None = None
    model_version: str = field(default="", compare=False)
    cost: Cost = field(default_factory=Cost, compare=False)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a model is and can do.

    ``engine``: `transformers`, `pointer`, `ctranslate2`, `triton` or `openai`; ``runtime``: what runs under
    the latter two, empty elsewhere; ``augmentations``: its default first; ``max_input_tokens`` and
    ``max_new_tokens``: most tokens it reads and writes, [1, 2^31 - 1]. A model that reads and writes in one
    context (decoder-only) reads at most ``max_input_tokens`` less what it may write. ``max_passage_tokens``:
    most tokens of a passage that is read alone, with the question; 0 where they are ``max_input_tokens``.
    ``max_passage_pairs``: most pairs of the question and a passage, or a piece of a long one, that are read
    for an answer, unless it has more passages; 0 where each is read once, cut. ``max_beams``: most beams that
    it can search, [1, 16]. ``reads_context``: whether it reads a contextual question.
    """

    name: str
    version: str
    engine: str
    architecture: str
    device: str
    dtype: str
    scores_relevance: bool
    max_input_tokens: int
    max_new_tokens: int
    augmentations: tuple[Augmentation, ...]
    runtime: str = ""
    max_passage_tokens: int = 0
    max_passage_pairs: int = 0
    max_beams: int = 16
    reads_context: bool = False

    @property
    def takes_template(self) -> bool:
        """Whether it reads prompts of templates, and earlier turns in them."""
        return "pointer" not in (self.engine, self.runtime)
