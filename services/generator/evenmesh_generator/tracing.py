"""Spans of what models do: one for the answers of a request or a batch, one for a judgement.

Their attributes have OpenTelemetry's GenAI names, literals for the reason that
:mod:`evenmesh_generator.metrics` gives. They hold no text of users unless the settings allow it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from opentelemetry.trace import Span

from evenmesh_generator.domain import GenerationRequest, RelevanceRequest
from evenmesh_generator.engine import GeneratedAnswer, RelevanceScores
from evenmesh_generator.metrics import SCORE_RELEVANCE, TEXT_COMPLETION
from evenmesh_kit.telemetry.spans import Attributes, Spans, describe

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
MAX_TOKENS: Final = "gen_ai.request.max_tokens"
TEMPERATURE: Final = "gen_ai.request.temperature"
TOP_P: Final = "gen_ai.request.top_p"
SEED: Final = "gen_ai.request.seed"
STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK_S: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"


class ModelSpans:
    """Makes spans of answers and judgements.

    Args:
        spans: makes spans.
    """

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    def answering(
        self, requests: Sequence[GenerationRequest], model: str, *, stream: bool
    ) -> AbstractContextManager[Span]:
        """Return a span around the writing of answers; ``model`` is empty if there is no such model."""

        def asked() -> Attributes:
            described: Attributes = {
                OPERATION: TEXT_COMPLETION,
                PROVIDER: "evenmesh",
                REQUEST_MODEL: model or None,
                STREAM: stream,
                "evenmesh.generate.contexts": len(requests),
            }
            if not requests:
                return described
            first, decoding = requests[0], requests[0].decoding
            augmentation = None if first.augmentation is None else first.augmentation.value
            return {
                **described,
                MAX_TOKENS: decoding.max_new_tokens,
                TEMPERATURE: decoding.temperature,
                TOP_P: decoding.top_p,
                SEED: decoding.seed,
                "evenmesh.generate.beams": decoding.num_beams,
                "evenmesh.generate.augmentation": augmentation,
                "evenmesh.generate.passages": len(first.passages),
                INPUT: _messages("user", map(_read, requests)) if self._spans.text else None,
            }

        return self._spans.within(f"{TEXT_COMPLETION} {model}".rstrip(), asked)

    def answered(self, span: Span, finished: Sequence[GeneratedAnswer]) -> None:
        """Record on a span which answers were written, and their cost."""
        if not finished or not span.is_recording():
            return
        first, answers = finished[0], [one.answer for one in finished]
        costs = [one.cost for one in answers]
        describe(
            span,
            {
                RESPONSE_MODEL: f"{first.model.name}@{first.answer.model_version or first.model.version}",
                FINISH_REASONS: [one.finish_reason.value for one in answers],
                FIRST_CHUNK_S: min(cost.first_token_s for cost in costs),
                INPUT_TOKENS: sum(one.prompt_tokens for one in answers),
                OUTPUT_TOKENS: sum(one.written_tokens for one in finished),
                CACHED_TOKENS: sum(cost.reused_tokens for cost in costs),
                "evenmesh.generator.engine": first.model.engine,
                "evenmesh.generator.queue_s": max(cost.queue_s for cost in costs),
                "evenmesh.generator.batch.rows": max(cost.batch_rows for cost in costs),
                OUTPUT: _messages("assistant", (one.text for one in answers)) if self._spans.text else None,
            },
        )

    def judging(self, request: RelevanceRequest, model: str) -> AbstractContextManager[Span]:
        """Return a span around the judging of passages."""

        def asked() -> Attributes:
            return {
                OPERATION: SCORE_RELEVANCE,
                PROVIDER: "evenmesh",
                REQUEST_MODEL: model or None,
                "evenmesh.judge.passages": len(request.passages),
                INPUT: _messages("user", [_read(request)]) if self._spans.text else None,
            }

        return self._spans.within(f"{SCORE_RELEVANCE} {model}".rstrip(), asked)

    def judged(self, span: Span, judged: RelevanceScores) -> None:
        """Record on a span which model judged, and how many passages were not judged."""
        describe(
            span,
            {
                RESPONSE_MODEL: f"{judged.model.name}@{judged.model.version}",
                "evenmesh.generator.engine": judged.model.engine,
                "evenmesh.judge.unjudged": judged.unjudged,
            },
        )


def _read(request: GenerationRequest | RelevanceRequest) -> str:
    """Return what a model is given to read, before its template."""
    return "\n".join([request.question, *(f"{one.title} {one.text}".strip() for one in request.passages)])


def _messages(role: str, texts: Iterable[str]) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": one}]} for one in texts])
