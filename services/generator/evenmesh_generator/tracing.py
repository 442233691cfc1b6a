"""Spans of what models do: one for the answers of a request or a batch, one for a judgement.

Their attributes have OpenTelemetry's GenAI names. They hold no text of users unless the settings allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from opentelemetry.trace import Span

from evenmesh_generator.domain import GenerationRequest, RelevanceRequest
from evenmesh_generator.engine import GeneratedAnswer, RelevanceScores
from evenmesh_generator.metrics import SCORE_RELEVANCE
from evenmesh_kit.telemetry import gen_ai
from evenmesh_kit.telemetry.spans import Attributes, Spans, describe


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
                gen_ai.OPERATION: gen_ai.TEXT_COMPLETION,
                gen_ai.PROVIDER: "evenmesh",
                gen_ai.REQUEST_MODEL: model or None,
                gen_ai.STREAM: stream,
                "evenmesh.generate.contexts": len(requests),
            }
            if not requests:
                return described
            first, decoding = requests[0], requests[0].decoding
            augmentation = None if first.augmentation is None else first.augmentation.value
            return {
                **described,
                gen_ai.MAX_TOKENS: decoding.max_new_tokens,
                gen_ai.TEMPERATURE: decoding.temperature,
                gen_ai.TOP_P: decoding.top_p,
                gen_ai.SEED: decoding.seed,
                "evenmesh.generate.beams": decoding.num_beams,
                "evenmesh.generate.augmentation": augmentation,
                "evenmesh.generate.passages": len(first.passages),
                gen_ai.INPUT: gen_ai.messages("user", map(_read, requests)) if self._spans.text else None,
            }

        return self._spans.within(f"{gen_ai.TEXT_COMPLETION} {model}".rstrip(), asked)

    def answered(self, span: Span, finished: Sequence[GeneratedAnswer]) -> None:
        """Record on a span which answers were written, and their cost."""
        if not finished or not span.is_recording():
            return
        first, answers = finished[0], [one.answer for one in finished]
        costs, texts = [one.cost for one in answers], (one.text for one in answers)
        version = first.answer.model_version or first.model.version
        describe(
            span,
            {
                gen_ai.RESPONSE_MODEL: f"{first.model.name}@{version}",
                gen_ai.FINISH_REASONS: [one.finish_reason.value for one in answers],
                gen_ai.FIRST_CHUNK_S: min(cost.first_token_s for cost in costs),
                gen_ai.INPUT_TOKENS: sum(one.prompt_tokens for one in answers),
                gen_ai.OUTPUT_TOKENS: sum(one.written_tokens for one in finished),
                gen_ai.CACHED_TOKENS: sum(cost.reused_tokens for cost in costs),
                "evenmesh.generator.engine": first.model.engine,
                "evenmesh.generator.queue_s": max(cost.queue_s for cost in costs),
                "evenmesh.generator.batch.rows": max(cost.batch_rows for cost in costs),
                gen_ai.OUTPUT: gen_ai.messages("assistant", texts) if self._spans.text else None,
            },
        )

    def judging(self, request: RelevanceRequest, model: str) -> AbstractContextManager[Span]:
        """Return a span around the judging of passages."""

        def asked() -> Attributes:
            return {
                gen_ai.OPERATION: SCORE_RELEVANCE,
                gen_ai.PROVIDER: "evenmesh",
                gen_ai.REQUEST_MODEL: model or None,
                "evenmesh.judge.passages": len(request.passages),
                gen_ai.INPUT: gen_ai.messages("user", [_read(request)]) if self._spans.text else None,
            }

        return self._spans.within(f"{SCORE_RELEVANCE} {model}".rstrip(), asked)

    def judged(self, span: Span, judged: RelevanceScores) -> None:
        """Record on a span which model judged, and how many passages were not judged."""
        describe(
            span,
            {
                gen_ai.RESPONSE_MODEL: f"{judged.model.name}@{judged.model.version}",
                "evenmesh.generator.engine": judged.model.engine,
                "evenmesh.judge.unjudged": judged.unjudged,
            },
        )


def _read(request: GenerationRequest | RelevanceRequest) -> str:
    """Return what a model is given to read, before its template."""
    return "\n".join([request.question, *(f"{one.title} {one.text}".strip() for one in request.passages)])
