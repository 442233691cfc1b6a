"""What the generator speaks of: questions, passages, how to decode, answers, models."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Augmentation(enum.Enum):
    """How passages are handed to the model; the values are what people read.

    With the last two the model writes a document first, of its own or a summary of the passages, and answers
    from it (Li et al., ensemble of retrievers, section 2.1).
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
class Decoding:
    """How tokens are chosen.

    ``num_beams`` [1, 16], 1 is greedy; ``max_new_tokens`` [1, 4096]; ``temperature`` [0, 10], 0 means no
    sampling, and sampling has one beam; ``top_p`` (0, 1]; ``seed`` [0, 2^63).
    """

    num_beams: int = 1
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A question, its passages (best first) and how to answer.

    ``augmentation`` None and ``template`` "" leave the choice to the model.
    """

    question: str
    passages: tuple[Passage, ...] = ()
    model: str = ""
    augmentation: Augmentation | None = None
    template: str = ""
    decoding: Decoding = field(default_factory=Decoding)


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    ``prompt_tokens`` and ``completion_tokens`` count what was read and written, the end token included;
    ``log_probability`` is the sum, in nats, over the written tokens, of the model's own distribution (before
    temperature, nucleus and forced tokens); ``dropped_passages`` did not fit and were left out, last ones
    first.
    """

    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    log_probability: float
    dropped_passages: int = 0


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What a model is and can do.

    ``engine``: `transformers`, `pointer` or `triton`; ``augmentations``: its default first;
    ``max_input_tokens`` and ``max_new_tokens``: most tokens it reads and writes, [1, 2^31 - 1]. A model that
    reads and writes in one context (decoder-only) reads at most ``max_input_tokens`` less what it may write.
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
