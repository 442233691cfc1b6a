"""Spans of the steps of an ask: one per call of a port, below the span of the RPC.

The spans `retrieve`, `rerank`, `generate` and `observe` are the same for asks, ensembles, audits and turns of
conversations. Attributes have OpenTelemetry's names where it has any. They hold no text of users unless the
settings allow it, nor users' names of passages, runs or agents.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from opentelemetry import context as otel_context
from opentelemetry import trace

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.generator.v1 import generator_service_pb2 as generator_pb
from evenmesh.generator.v1.generator_service_pb2 import Answer, GenerateRequest
from evenmesh.wire.errors import MeshError
from evenmesh_kit.rpc.policies import in_words
from evenmesh_kit.telemetry import gen_ai
from evenmesh_kit.telemetry.recorder import inject_context
from evenmesh_kit.telemetry.spans import Attributes, Spans, describe
from evenmesh_orchestrator.domain import Ask, FirstStage, Observation, Pool, Relevance, Sampling, word_of
from evenmesh_orchestrator.ports import Generator, Observer, Receipt, Reranker, Retriever


class TracedRetriever:
    """A :class:`evenmesh_orchestrator.ports.Retriever` with a span `retrieve` for each call."""

    def __init__(self, retriever: Retriever, spans: Spans) -> None:
        self._retriever = retriever
        self._spans = spans

    async def retrieve(self, ask: Ask, *, k: int, sampling: Sampling | None, timeout_s: float) -> Pool:
        """Retrieve; see the port."""

        def asked() -> Attributes:
            return {
                gen_ai.OPERATION: gen_ai.RETRIEVAL,
                gen_ai.DATA_SOURCE: ask.web or ask.collection or None,
                "evenmesh.retrieval.depth": ask.depth,
                "evenmesh.retrieval.k": k,
                gen_ai.QUERY_TEXT: ask.search_text if self._spans.text else None,
                **sampling_attributes(sampling),
            }

        with self._spans.within("retrieve", asked) as span:
            pool = await self._retriever.retrieve(ask, k=k, sampling=sampling, timeout_s=timeout_s)
            if span.is_recording():
                describe(span, pool_attributes(pool, text=self._spans.text))
            return pool


class TracedReranker:
    """A :class:`evenmesh_orchestrator.ports.Reranker` with a span `rerank` for each call."""

    def __init__(self, reranker: Reranker, spans: Spans) -> None:
        self._reranker = reranker
        self._spans = spans

    async def rerank(
        self, ask: Ask, passages: Sequence[Passage], *, timeout_s: float, first: FirstStage | None = None
    ) -> Relevance:
        """Rerank; see the port."""

        def asked() -> Attributes:
            return {
                "evenmesh.reranker": ask.reranker,
                "evenmesh.reranker.pairs": len(passages),
                "evenmesh.agent.task_id": ask.agent.task_id if self._spans.text else None,
                "evenmesh.agent.model_id": ask.agent.model_id if self._spans.text else None,
                gen_ai.QUERY_TEXT: ask.search_text if self._spans.text else None,
            }

        with self._spans.within("rerank", asked) as span:
            relevance = await self._reranker.rerank(ask, passages, timeout_s=timeout_s, first=first)
            describe(
                span,
                {
                    "evenmesh.reranker": relevance.reranker,
                    "evenmesh.reranker.model.version": relevance.model_version,
                    "evenmesh.reranker.fusion": relevance.fusion,
                },
            )
            return relevance


class TracedGenerator:
    """A :class:`evenmesh_orchestrator.ports.Generator` with a span `generate` for each call."""

    def __init__(self, generator: Generator, spans: Spans) -> None:
        self._generator = generator
        self._spans = spans

    async def stream(
        self, prompt: GenerateRequest, *, timeout_s: float
    ) -> AsyncGenerator[str | Answer, None]:
        """Stream an answer; see the port."""
        began = time.perf_counter()
        with self._spans.within("generate", lambda: self._asked([prompt], stream=True)) as span:
            waiting = span.is_recording()
            async with aclosing(self._generator.stream(prompt, timeout_s=timeout_s)) as parts:
                async for part in parts:
                    if waiting:
                        waiting = False
                        span.set_attribute(gen_ai.FIRST_CHUNK_S, time.perf_counter() - began)
                    if not isinstance(part, str) and span.is_recording():
                        describe(span, self._answered([part]))
                    yield part

    async def batch(
        self, prompts: Sequence[GenerateRequest], *, timeout_s: float
    ) -> Sequence[Answer | MeshError]:
        """Answer several prompts; see the port."""
        with self._spans.within("generate", lambda: self._asked(prompts, stream=False)) as span:
            outcomes = await self._generator.batch(prompts, timeout_s=timeout_s)
            if span.is_recording():
                describe(span, self._answered([one for one in outcomes if not isinstance(one, MeshError)]))
                failed = [one.reason for one in outcomes if isinstance(one, MeshError)]
                if failed:
                    describe(span, {"evenmesh.generate.failed": len(failed), "error.type": failed[0]})
            return outcomes

    async def knowledge(self, ask: Ask, *, max_passages: int, timeout_s: float) -> Pool:
        """Write what the model knows, in a span `retrieve`; see the port."""

        def asked() -> Attributes:
            return {
                gen_ai.OPERATION: gen_ai.RETRIEVAL,
                gen_ai.REQUEST_MODEL: ask.model or None,
                "evenmesh.retrieval.k": max_passages,
                gen_ai.QUERY_TEXT: ask.question if self._spans.text else None,
            }

        with self._spans.within("retrieve", asked) as span:
            pool = await self._generator.knowledge(ask, max_passages=max_passages, timeout_s=timeout_s)
            if span.is_recording():
                describe(span, pool_attributes(pool, text=self._spans.text))
            return pool

    def _asked(self, prompts: Sequence[GenerateRequest], *, stream: bool) -> Attributes:
        if not prompts:
            return {gen_ai.OPERATION: gen_ai.TEXT_COMPLETION}
        first, decoding = prompts[0], prompts[0].decoding
        return {
            gen_ai.OPERATION: gen_ai.TEXT_COMPLETION,
            gen_ai.PROVIDER: "evenmesh",
            gen_ai.REQUEST_MODEL: first.model or None,
            gen_ai.STREAM: stream,
            gen_ai.MAX_TOKENS: decoding.max_new_tokens,
            gen_ai.TEMPERATURE: decoding.temperature,
            gen_ai.TOP_P: decoding.top_p,
            gen_ai.SEED: decoding.seed,
            "evenmesh.generate.beams": decoding.num_beams,
            "evenmesh.generate.augmentation": _augmentation(first),
            "evenmesh.generate.contexts": len(prompts),
            "evenmesh.generate.passages": len(first.passages),
            gen_ai.INPUT: gen_ai.messages("user", map(_written, prompts)) if self._spans.text else None,
        }

    def _answered(self, answers: Sequence[Answer]) -> Attributes:
        if not answers:
            return {}
        first, texts = answers[0], (one.text for one in answers)
        return {
            gen_ai.RESPONSE_MODEL: f"{first.model}@{first.model_version}",
            gen_ai.OUTPUT: gen_ai.messages("assistant", texts) if self._spans.text else None,
        }


class TracedObserver:
    """A :class:`evenmesh_orchestrator.ports.Observer` with a span `observe` for each observation.

    The span ends when the observation is stored here. The evaluator's work on it, however much later, is a
    span below it: see :func:`encoder`.
    """

    def __init__(self, observer: Observer, spans: Spans) -> None:
        self._observer = observer
        self._spans = spans

    async def submit(self, observation: Observation) -> Receipt:
        """Submit an observation; see the port."""

        def asked() -> Attributes:
            run_id = observation.ask.run_id if self._spans.text else None
            return {"evenmesh.ask.id": observation.ask.id, "evenmesh.run.id": run_id}

        with self._spans.within("observe", asked) as span:
            receipt = await self._observer.submit(observation)
            describe(span, {"evenmesh.outbox.waits": receipt.waits})
            return receipt


def encoder(encode: Callable[[Observation], bytes]) -> Callable[[Observation], bytes]:
    """Return an encoder that adds the current trace (W3C ``traceparent``) if it is recorded."""

    def encoded(observation: Observation) -> bytes:
        payload = encode(observation)
        if not trace.get_current_span().get_span_context().trace_flags.sampled:
            return payload
        traceparent = inject_context(otel_context.get_current())["traceparent"]
        # Protobuf reads concatenated messages as one that has the fields of both.
        return payload + evaluator_pb.Observation(trace_context=traceparent).SerializeToString()

    return encoded


def sampling_attributes(sampling: Sampling | None) -> Attributes:
    """Return attributes of how rankings are drawn; none for None."""
    if sampling is None:
        return {}
    return {
        "evenmesh.sampling.alpha": sampling.alpha,
        "evenmesh.sampling.target": None if sampling.target is None else in_words(sampling.target),
        "evenmesh.sampling.seed": sampling.seed,
        "evenmesh.sampling.rankings": sampling.num_rankings,
    }


def pool_attributes(pool: Pool, *, text: bool) -> Attributes:
    """Return attributes of a pool; its passages only with ``text``."""
    documents = [
        {"id": one.id, "score": score, "content": f"{one.title} {one.text}".strip()}
        for one, score in (zip(pool.passages, pool.scores.tolist(), strict=False) if text else ())
    ]
    return {
        "evenmesh.retriever": pool.retriever or None,
        "evenmesh.index.version": pool.index_version or None,
        "evenmesh.retrieval.returned": len(pool.passages),
        "evenmesh.retrieval.rankings": len(pool.rankings),
        gen_ai.DOCUMENTS: json.dumps(documents) if text else None,
    }


def _augmentation(prompt: GenerateRequest) -> str:
    return word_of(generator_pb.Augmentation, prompt.augmentation) if prompt.augmentation else "default"


def _written(prompt: GenerateRequest) -> str:
    """Return the known text of a prompt: the model's template assembles it."""
    return "\n".join([prompt.question, *(f"{one.title} {one.text}".strip() for one in prompt.passages)])
