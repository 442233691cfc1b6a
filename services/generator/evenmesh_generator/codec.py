"""Convert between messages and the domain, and check every bound that the proto states."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence, Set
from typing import Final

from evenmesh.common.v1 import common_pb2
from evenmesh.generator.v1 import generator_service_pb2 as pb
from evenmesh.wire import checks
from evenmesh.wire.choices import Choices
from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_generator import relevance
from evenmesh_generator.domain import (
    Augmentation,
    Best,
    Cost,
    Decoding,
    FinishReason,
    GenerationRequest,
    ModelDescription,
    Normalization,
    Passage,
    RelevanceRequest,
    Turn,
)
from evenmesh_generator.engine import GeneratedAnswer, RelevanceScores, batch_cost
from evenmesh_kit.rpc.statuses import item_error

MAX_PASSAGES: Final = 100
"""Most passages of one answer."""
MAX_JUDGED: Final = 1000
"""Most passages judged in one call."""
MAX_REQUESTS: Final = 256
"""Most requests in a batch."""
MAX_NAME_BYTES: Final = 256
"""Longest name of a model or template. Bytes."""
MAX_CONTEXTUAL_BYTES: Final = 8_192
"""Longest question with what earlier turns add to it. Bytes."""
MAX_TURNS: Final = 100
"""Most earlier turns of a conversation."""
MAX_REPLY_BYTES: Final = 65_536
"""Longest answer of an earlier turn. Bytes."""

_AUGMENTATIONS: Final = Choices(pb.Augmentation.DESCRIPTOR, Augmentation)
_NORMALIZATIONS: Final = Choices(
    pb.ScoreRelevanceRequest.Normalization.DESCRIPTOR, Normalization, Normalization.TRUE_FALSE
)
_FINISH_REASONS: Final = Choices(pb.Answer.FinishReason.DESCRIPTOR, FinishReason)


def decode_request(message: pb.GenerateRequest, *, default_beams: int, tenant: str = "") -> GenerationRequest:
    """Return a tenant's request; ``default_beams`` where it names none and does not sample.

    Raises:
        InvalidField: a field is out of its bounds.
    """
    question = checks.text("question", message.question)
    checks.passages("passages", message.passages, min=0, max=MAX_PASSAGES)
    augmentation = None
    if message.augmentation != pb.AUGMENTATION_UNSPECIFIED:
        augmentation = _AUGMENTATIONS.read("augmentation", message.augmentation)
    return GenerationRequest(
        question=question,
        passages=decode_passages(message.passages),
        model=checks.at_most("model", message.model, MAX_NAME_BYTES),
        augmentation=augmentation,
        template=checks.at_most("template", message.template, MAX_NAME_BYTES),
        decoding=_decoding(message.decoding, default_beams),
        turns=_turns(message.turns),
        tenant=tenant,
        contextual_question=checks.at_most(
            "contextual_question", message.contextual_question, MAX_CONTEXTUAL_BYTES
        ),
    )


def decode_batch(message: pb.GenerateBatchRequest, tenant: str = "") -> list[GenerationRequest | MeshError]:
    """Return every item of a batch, or its error; beam 4 where an item names no beams.

    Raises:
        InvalidField: there are no items, or too many.
    """
    if not 1 <= len(message.requests) <= MAX_REQUESTS:
        raise InvalidField("requests", f"must be 1 to {MAX_REQUESTS} requests, has {len(message.requests)}")
    items: list[GenerationRequest | MeshError] = []
    for request in message.requests:
        try:
            items.append(decode_request(request, default_beams=4, tenant=tenant))
        except MeshError as error:
            items.append(error)
    return items


def decode_judgement(
    message: pb.ScoreRelevanceRequest, tenant: str = ""
) -> tuple[RelevanceRequest, str, Best | None]:
    """Return what to judge, the model's name, and how many of the best are wanted (None: judge all).

    Raises:
        InvalidField: a field is out of its bounds.
    """
    question = checks.text("question", message.question)
    checks.passages("passages", message.passages, min=1, max=MAX_JUDGED)
    request = RelevanceRequest(
        question,
        decode_passages(message.passages),
        _NORMALIZATIONS.read("normalization", message.normalization),
        template=checks.at_most("template", message.template, MAX_NAME_BYTES),
        turns=_turns(message.turns),
        tenant=tenant,
    )
    return request, checks.at_most("model", message.model, MAX_NAME_BYTES), _best(message)


def decode_passages(messages: Sequence[common_pb2.Passage]) -> tuple[Passage, ...]:
    """Return the passages as models read them: attributes stay outside."""
    return tuple(Passage(one.id, one.title, one.text) for one in messages)


def encode_answer(finished: GeneratedAnswer) -> pb.Answer:
    """Return an answer with the model that wrote it."""
    answer, model = finished.answer, finished.model
    span = answer.span
    return pb.Answer(
        text=answer.text,
        finish_reason=_FINISH_REASONS.number(answer.finish_reason),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        log_probability=answer.log_probability,
        model=model.name,
        model_version=answer.model_version or model.version,
        engine=model.engine,
        dropped_passages=answer.dropped_passages,
        cut_passages=answer.cut_passages,
        cost=_cost(answer.cost),
        dropped_turns=answer.dropped_turns,
        cut_question=answer.cut_question,
        confidence=answer.confidence,
        span=None if span is None else pb.Span(passage=span.passage, start=span.start, end=span.end),
    )


def encode_results(outcomes: Sequence[GeneratedAnswer | MeshError]) -> pb.GenerateBatchResponse:
    """Return one outcome per item, and the cost of all."""
    cost = batch_cost(outcomes)
    return pb.GenerateBatchResponse(
        results=[
            pb.GenerateBatchResult(error=item_error(outcome))
            if isinstance(outcome, MeshError)
            else pb.GenerateBatchResult(answer=encode_answer(outcome))
            for outcome in outcomes
        ],
        cost=pb.BatchCost(
            computed_answers=cost.computed_answers,
            reused_answers=cost.reused_answers,
            computed_tokens=cost.computed_tokens,
            reused_tokens=cost.reused_tokens,
            written_tokens=cost.written_tokens,
        ),
    )


def encode_judgement(judged: RelevanceScores) -> pb.ScoreRelevanceResponse:
    """Return P(True) per passage with the model that judged."""
    count = len(judged.probabilities)
    return pb.ScoreRelevanceResponse(
        probabilities=[*judged.probabilities, *[math.nan] * judged.unjudged],
        model=judged.model.name,
        model_version=judged.model.version,
        unjudged=range(count, count + judged.unjudged),
        unjudged_at_most=relevance.AT_MOST if judged.unjudged else None,
    )


def encode_models(
    models: Sequence[ModelDescription], unavailable: Set[str] = frozenset()
) -> pb.ListModelsResponse:
    """Return the models, the first marked as the default, those in ``unavailable`` as unavailable."""
    return pb.ListModelsResponse(
        models=[
            pb.Model(
                name=model.name,
                version=model.version,
                engine=model.engine,
                architecture=model.architecture,
                device=model.device,
                dtype=model.dtype,
                is_default=at == 0,
                scores_relevance=model.scores_relevance,
                max_input_tokens=model.max_input_tokens,
                augmentations=[_AUGMENTATIONS.number(one) for one in model.augmentations],
                max_new_tokens=model.max_new_tokens,
                runtime=model.runtime,
                unavailable=model.name in unavailable,
            )
            for at, model in enumerate(models)
        ]
    )


def _best(message: pb.ScoreRelevanceRequest) -> Best | None:
    if not message.HasField("top_k"):
        if message.HasField("tolerance"):
            raise InvalidField("tolerance", "goes with top_k, which is not set")
        return None
    return Best(
        checks.between("top_k", message.top_k, 1, len(message.passages)),
        checks.between("tolerance", message.tolerance, 0.0, 1.0),
    )


def _turns(messages: Sequence[pb.Turn]) -> tuple[Turn, ...]:
    if len(messages) > MAX_TURNS:
        raise InvalidField("turns", f"must be at most {MAX_TURNS} turns, has {len(messages)}")
    turns = []
    for at, one in enumerate(messages):
        answer = checks.at_most(f"turns[{at}].answer", one.answer, MAX_REPLY_BYTES)
        turns.append(Turn(checks.text(f"turns[{at}].question", one.question), answer))
    return tuple(turns)


def _cost(cost: Cost) -> pb.Cost:
    return pb.Cost(
        queue_ms=cost.queue_s * 1e3,
        first_token_ms=cost.first_token_s * 1e3,
        total_ms=cost.total_s * 1e3,
        computed_tokens=cost.computed_tokens,
        reused_tokens=cost.reused_tokens,
        batch_rows=cost.batch_rows,
    )


def _decoding(message: pb.Decoding, default_beams: int) -> Decoding:
    temperature = checks.between("decoding.temperature", message.temperature, 0.0, 10.0)
    named = message.HasField("num_beams")
    num_beams = default_beams if temperature == 0 else 1
    if named:
        num_beams = checks.between("decoding.num_beams", message.num_beams, 1, 16)
        if num_beams > 1 and temperature > 0:
            raise InvalidField("decoding.num_beams", f"must be 1 when sampling, got {num_beams}")
    max_new_tokens = 64
    if message.HasField("max_new_tokens"):
        max_new_tokens = checks.between("decoding.max_new_tokens", message.max_new_tokens, 1, 4096)
    top_p = message.top_p if message.HasField("top_p") else 1.0
    if not 0.0 < top_p <= 1.0:
        raise InvalidField("decoding.top_p", f"must be in (0, 1], got {top_p}")
    seed = secrets.randbelow(2**32) if temperature > 0 else 0
    if message.HasField("seed"):
        seed = checks.between("decoding.seed", message.seed, 0, 2**63 - 1)
    stop = checks.stop("decoding.stop", message.stop)
    return Decoding(num_beams, max_new_tokens, temperature, top_p, seed, stop, beams_named=named)
