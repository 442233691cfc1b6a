"""Spans of an ask's steps: each call of a port as one, below the RPC that it is made for.

`retrieve`, `rerank`, `generate` and `observe`, whatever asks for them: an ask, an ensemble, an audit or a
turn of a conversation. Their attributes have OpenTelemetry's names where it has any, which are literals here
for the reason that :mod:`services.generator.metrics` gives; a test holds them against the package. Text of
users is in none of them unless the settings say so, nor are names that they give to passages, runs, agents.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from meshkit.errors import MeshError
from meshkit.recorder import injected
from meshkit.spans import Attributes, Spans, describe
from orchestrator.domain import Agent, Answer, Ask, Observation, Passage, Pool, Prompt, Relevance, Sampling
from orchestrator.letters import with_trace
from orchestrator.ports import Generator, Observer, Receipt, Reranker, Retriever

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FIRST_CHUNK_S: Final = "gen_ai.response.time_to_first_chunk"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
DATA_SOURCE: Final = "gen_ai.data_source.id"
QUERY_TEXT: Final = "gen_ai.retrieval.query.text"
DOCUMENTS: Final = "gen_ai.retrieval.documents"

RETRIEVAL: Final = "retrieval"
TEXT_COMPLETION: Final = "text_completion"


class TracedRetriever:
    """A :class:`orchestrator.ports.Retriever`, each call in a span `retrieve`."""

    def __init__(self, retriever: Retriever, spans: Spans) -> None:
        self._retriever = retriever
        self._spans = spans

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        """See the port."""

        def asked() -> Attributes:
            return {
                OPERATION: RETRIEVAL,
                DATA_SOURCE: ask.web or ask.collection or None,
                "ragmesh.retrieval.depth": ask.depth,
                "ragmesh.retrieval.k": k,
                QUERY_TEXT: ask.wording if self._spans.text else None,
                **drawn(sampling),
            }

        with self._spans.within("retrieve", asked) as span:
            pool = await self._retriever.retrieve(ask, k=k, sampling=sampling, timeout_s=timeout_s)
            if span.is_recording():
                describe(span, found(pool, text=self._spans.text))
            return pool


class TracedReranker:
    """A :class:`orchestrator.ports.Reranker`, each call in a span `rerank`."""

    def __init__(self, reranker: Reranker, spans: Spans) -> None:
        self._reranker = reranker
        self._spans = spans

    async def rerank(
        self, question: str, passages: Sequence[Passage], *, agent: Agent, reranker: str, timeout_s: float
    ) -> Relevance:
        """See the port."""

        def asked() -> Attributes:
            return {
                "ragmesh.reranker": reranker,
                "ragmesh.reranker.pairs": len(passages),
                "ragmesh.agent.task_id": agent.task_id if self._spans.text else None,
                "ragmesh.agent.model_id": agent.model_id if self._spans.text else None,
                QUERY_TEXT: question if self._spans.text else None,
            }

        with self._spans.within("rerank", asked) as span:
            relevance = await self._reranker.rerank(
                question, passages, agent=agent, reranker=reranker, timeout_s=timeout_s
            )
            describe(
                span,
                {
                    "ragmesh.reranker": relevance.reranker,
                    "ragmesh.reranker.model.version": relevance.model_version,
                },
            )
            return relevance


class TracedGenerator:
    """A :class:`orchestrator.ports.Generator`, each call in a span `generate`."""

    def __init__(self, generator: Generator, spans: Spans) -> None:
        self._generator = generator
        self._spans = spans

    async def stream(self, prompt: Prompt, *, timeout_s: float) -> AsyncGenerator[str | Answer, None]:
        """See the port."""
        began = time.perf_counter()
        with self._spans.within("generate", lambda: self._asked([prompt], stream=True)) as span:
            waiting = span.is_recording()
            async with aclosing(self._generator.stream(prompt, timeout_s=timeout_s)) as parts:
                async for part in parts:
                    if waiting:
                        waiting = False
                        span.set_attribute(FIRST_CHUNK_S, time.perf_counter() - began)
                    if not isinstance(part, str) and span.is_recording():
                        describe(span, self._said([part]))
                    yield part

    async def batch(self, prompts: Sequence[Prompt], *, timeout_s: float) -> Sequence[Answer | MeshError]:
        """See the port."""
        with self._spans.within("generate", lambda: self._asked(prompts, stream=False)) as span:
            outcomes = await self._generator.batch(prompts, timeout_s=timeout_s)
            if span.is_recording():
                describe(span, self._said([one for one in outcomes if not isinstance(one, MeshError)]))
                failed = [one.reason for one in outcomes if isinstance(one, MeshError)]
                if failed:
                    describe(span, {"ragmesh.generate.failed": len(failed), "error.type": failed[0]})
            return outcomes

    async def knowledge(self, ask: Ask, *, most: int, timeout_s: float) -> Pool:
        """See the port; what a model knows is retrieved from it."""

        def asked() -> Attributes:
            return {
                OPERATION: RETRIEVAL,
                REQUEST_MODEL: ask.model or None,
                "ragmesh.retrieval.k": most,
                QUERY_TEXT: ask.question if self._spans.text else None,
            }

        with self._spans.within("retrieve", asked) as span:
            pool = await self._generator.knowledge(ask, most=most, timeout_s=timeout_s)
            if span.is_recording():
                describe(span, found(pool, text=self._spans.text))
            return pool

    def _asked(self, prompts: Sequence[Prompt], *, stream: bool) -> Attributes:
        if not prompts:
            return {OPERATION: TEXT_COMPLETION}
        first, decoding = prompts[0], prompts[0].decoding
        return {
            OPERATION: TEXT_COMPLETION,
            PROVIDER: "ragmesh",
            REQUEST_MODEL: first.model or None,
            REQUEST_STREAM: stream,
            REQUEST_MAX_TOKENS: decoding.max_new_tokens,
            REQUEST_TEMPERATURE: decoding.temperature,
            REQUEST_TOP_P: decoding.top_p,
            REQUEST_SEED: decoding.seed,
            "ragmesh.generate.beams": decoding.num_beams,
            "ragmesh.generate.augmentation": first.augmentation.value,
            "ragmesh.generate.contexts": len(prompts),
            "ragmesh.generate.passages": len(first.passages),
            INPUT: _messages("user", map(_written, prompts)) if self._spans.text else None,
        }

    def _said(self, answers: Sequence[Answer]) -> Attributes:
        if not answers:
            return {}
        first = answers[0]
        return {
            RESPONSE_MODEL: f"{first.model}@{first.model_version}",
            OUTPUT: _messages("assistant", (one.text for one in answers)) if self._spans.text else None,
        }


class TracedObserver:
    """A :class:`orchestrator.ports.Observer`, each post in a span `observe`.

    The span is over when the observation is kept here. What the evaluator does with it, however much later,
    is a span below it all the same: see :func:`encoder`.
    """

    def __init__(self, observer: Observer, spans: Spans) -> None:
        self._observer = observer
        self._spans = spans

    async def post(self, observation: Observation) -> Receipt:
        """See the port."""

        def asked() -> Attributes:
            run_id = observation.ask.run_id if self._spans.text else None
            return {"ragmesh.ask.id": observation.ask.id, "ragmesh.run.id": run_id}

        with self._spans.within("observe", asked) as span:
            receipt = await self._observer.post(observation)
            describe(span, {"ragmesh.outbox.waits": receipt.waits})
            return receipt


def encoder(encode: Callable[[Observation], bytes]) -> Callable[[Observation], bytes]:
    """Writes observations as ``encode`` does, with the trace of now if it is recorded."""

    def encoded(observation: Observation) -> bytes:
        payload = encode(observation)
        if not trace.get_current_span().get_span_context().trace_flags.sampled:
            return payload
        return with_trace(payload, injected(otel_context.get_current())["traceparent"])

    return encoded


def drawn(sampling: Sampling | None) -> Attributes:
    """Attributes of how rankings are drawn; none of a ranking that is not."""
    if sampling is None:
        return {}
    return {
        "ragmesh.sampling.alpha": sampling.alpha,
        "ragmesh.sampling.seed": sampling.seed,
        "ragmesh.sampling.rankings": sampling.num_rankings,
    }


def found(pool: Pool, *, text: bool) -> Attributes:
    """Attributes of what was found; the passages themselves only with ``text``."""
    documents = [
        {"id": one.id, "score": score, "content": f"{one.title} {one.text}".strip()}
        for one, score in (zip(pool.passages, pool.scores.tolist(), strict=False) if text else ())
    ]
    return {
        "ragmesh.retriever": pool.retriever or None,
        "ragmesh.index.version": pool.index_version or None,
        "ragmesh.retrieval.returned": len(pool.passages),
        "ragmesh.retrieval.rankings": len(pool.rankings),
        DOCUMENTS: json.dumps(documents) if text else None,
    }


def _written(prompt: Prompt) -> str:
    """What a prompt says, as far as it is known here: the model's template puts it together."""
    return "\n".join([prompt.question, *(f"{one.title} {one.text}".strip() for one in prompt.passages)])


def _messages(role: str, texts: Iterable[str]) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": one}]} for one in texts])
