"""Record what the retriever does: searches, draws and encodings as metrics and spans, and its collections.

Spans are `search`, within it `encode` where a query's vector is made and `sample` where rankings are drawn.
Their attributes have OpenTelemetry's names where it has any. Text of users is in none of them
unless the settings say so, nor are ids of passages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Final, Protocol

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.util.types import AttributeValue

from evenmesh_kit.rpc.policies import in_words
from evenmesh_kit.telemetry import gen_ai
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import Attributes, Spans, describe
from evenmesh_retriever.domain import CollectionInfo, Query, Retrieval, VectorArray
from evenmesh_retriever.ports import Encoder
from evenmesh_retriever.steps import Outcome

Collections = Callable[[], Iterable[tuple[str, CollectionInfo]]]
"""Gives each collection there is with its tenant; called from any thread."""


class Replica(Protocol):
    """What follows another process; called from any thread."""

    @property
    def age_s(self) -> float:
        """Time since it last saw what the other has. Seconds."""

    def lags(self) -> Sequence[tuple[tuple[str, str], int]]:
        """Return for each collection, after its tenant, how many versions it is behind."""


_SECONDS: Final = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
]  # fmt: skip
_DEFAULT_SERIES: Final = 20
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


class RetrieverMetrics:
    """Records it; costs nothing where telemetry is disabled.

    Args:
        telemetry: has meter and tracer.
        series: most collections that are reported by name: the largest.
    """

    def __init__(self, telemetry: Telemetry, *, series: int = _DEFAULT_SERIES) -> None:
        self._enabled = telemetry.enabled
        self._spans = Spans(telemetry)
        self._series = series
        meter = telemetry.meter
        durations = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=_SECONDS)
        self._searches = durations(
            "evenmesh.retriever.search.duration",
            description="Scoring and ranking of a query, in its threads.",
        )
        self._samples = durations(
            "evenmesh.retriever.sample.duration", description="Of it, what drawing rankings takes."
        )
        self._rankings = meter.create_counter(
            "evenmesh.retriever.sampled.rankings", "{ranking}", "Rankings drawn."
        )
        self._encodings = durations(
            "evenmesh.retriever.encode.duration", description="Calls of the dense encoder."
        )
        self._texts = meter.create_counter(
            "evenmesh.retriever.encoded.texts", "{text}", "Texts that the dense encoder made vectors of."
        )
        self._meter = meter

    async def searched(
        self, retriever: str, query: Query, search: Callable[[], Awaitable[Outcome[Retrieval]]]
    ) -> Retrieval:
        """Return what ``search`` finds, recorded with the time that it took in its threads."""
        if not self._enabled:
            return (await search()).result
        with self._spans.within("search", lambda: self._asked(retriever, query)) as span:
            outcome = await search()
            attributes: dict[str, AttributeValue] = {"retriever": outcome.result.retriever}
            attributes["sampled"] = query.draw is not None
            self._searches.record(outcome.seconds, attributes)
            if span.is_recording():
                describe(span, self._found(outcome.result))
            return outcome.result

    def sampling(self, retriever: str, query: Query) -> AbstractContextManager[None]:
        """Record the block as the drawing of rankings, if the query wants any."""
        return self._drawing(retriever, query) if self._enabled and query.draw is not None else _NOTHING

    def encoder(self, encoder: Encoder) -> Encoder:
        """Return the encoder, recorded."""
        return _MeasuredEncoder(encoder, self) if self._enabled else encoder

    @contextmanager
    def encoding(self, encoder: Encoder, kind: str, texts: int) -> Iterator[None]:
        """Record the block as the encoding of texts; ``kind`` is `query` or `passages`."""
        began = time.perf_counter()
        described: Attributes = {
            gen_ai.OPERATION: gen_ai.EMBEDDINGS,
            gen_ai.REQUEST_MODEL: encoder.name,
            gen_ai.DIMENSION: encoder.dimension,
        }
        with self._spans.within("encode", lambda: described):
            yield
            self._encodings.record(time.perf_counter() - began, {"input": kind})
            self._texts.add(texts, {"input": kind})

    def watch(self, collections: Collections) -> None:
        """Have the collections read whenever metrics are collected."""
        if not self._enabled:
            return

        def count(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(sum(1 for _ in collections()))]

        def each(
            read: Callable[[CollectionInfo], float | None],
            more: Callable[[CollectionInfo], dict[str, AttributeValue]] = lambda _: {},
        ) -> Callable[[CallbackOptions], Iterable[Observation]]:
            def observe(_: CallbackOptions) -> Iterable[Observation]:
                for tenant, info in self._largest(collections()):
                    value = read(info)
                    if value is not None:
                        yield Observation(value, {"tenant": tenant, "collection": info.name, **more(info)})

            return observe

        gauge = self._meter.create_observable_gauge
        gauge("evenmesh.retriever.collections", [count], "{collection}", "Collections served.")
        gauge(
            "evenmesh.retriever.collection.passages",
            [each(lambda info: info.num_passages)],
            "{passage}",
            "Passages of a collection.",
        )
        gauge(
            "evenmesh.retriever.collection.size",
            [each(lambda info: info.size_bytes)],
            "By",
            "Size of a collection.",
        )
        gauge(
            "evenmesh.retriever.collection.embedded",
            [each(lambda info: info.embedded if info.encoder else None)],
            "1",
            "Share of a collection's passages that have a vector.",
        )
        gauge(
            "evenmesh.retriever.collection.tombstones",
            [each(lambda info: info.num_tombstones)],
            "{passage}",
            "Passages of a collection that are gone and still on disk.",
        )
        gauge(
            "evenmesh.retriever.collection.updated.timestamp",
            [each(lambda info: info.updated_at.timestamp())],
            "s",
            "When a collection was last changed, since 1970.",
        )
        gauge(
            "evenmesh.retriever.collection.info",
            [each(lambda _: 1, lambda info: {"version": info.version, "encoder": info.encoder})],
            description="Versions that are served: 1.",
        )

    def follow(self, replica: Replica) -> None:
        """Have how far this process is behind the one that it follows read whenever metrics are collected."""
        if not self._enabled:
            return

        def behind(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(sum(1 for _, versions in replica.lags() if versions))]

        def lag(_: CallbackOptions) -> Iterable[Observation]:
            lags = sorted(replica.lags(), key=lambda one: (-one[1], one[0]))
            return [
                Observation(versions, {"tenant": tenant, "collection": name})
                for (tenant, name), versions in lags[: self._series]
            ]

        gauge = self._meter.create_observable_gauge
        gauge(
            "evenmesh.retriever.replica.age",
            [lambda _: [Observation(replica.age_s)]],
            "s",
            "Time since this read replica last saw what the writer has.",
        )
        gauge(
            "evenmesh.retriever.replica.behind",
            [behind],
            "{collection}",
            "Collections of which this read replica serves another version than the writer, or none.",
        )
        gauge(
            "evenmesh.retriever.replica.lag",
            [lag],
            "{version}",
            "Versions that a collection is behind, of those that are most.",
        )

    def _largest(self, collections: Iterable[tuple[str, CollectionInfo]]) -> list[tuple[str, CollectionInfo]]:
        by_size = sorted(collections, key=lambda one: (-one[1].num_passages, one[0], one[1].name))
        return by_size[: self._series]

    @contextmanager
    def _drawing(self, retriever: str, query: Query) -> Iterator[None]:
        began = time.perf_counter()
        with self._spans.within("sample", lambda: _drawn(query)):
            yield
            self._samples.record(time.perf_counter() - began, {"retriever": retriever})
            if query.draw is not None:
                self._rankings.add(query.draw.num_rankings, {"retriever": retriever})

    def _asked(self, retriever: str, query: Query) -> Attributes:
        return {
            gen_ai.OPERATION: gen_ai.RETRIEVAL,
            gen_ai.DATA_SOURCE: query.collection or None,
            "evenmesh.retriever": retriever,
            "evenmesh.retrieval.depth": query.depth,
            "evenmesh.retrieval.k": query.k,
            "evenmesh.retrieval.candidates": None if query.candidates is None else len(query.candidates),
            gen_ai.QUERY_TEXT: query.text if self._spans.text else None,
            **_drawn(query),
        }

    def _found(self, retrieval: Retrieval) -> Attributes:
        scored: Iterable[tuple[str, float]] = ()
        if self._spans.text:
            ids = [passage.id for passage in retrieval.passages]
            scored = zip(ids, retrieval.scores.tolist(), strict=True)
        return {
            "evenmesh.index.version": retrieval.version or None,
            "evenmesh.retrieval.returned": len(retrieval.passages),
            "evenmesh.retrieval.rankings": len(retrieval.rankings),
            gen_ai.DOCUMENTS: json.dumps([{"id": id_, "score": score} for id_, score in scored])
            if self._spans.text
            else None,
        }


class _MeasuredEncoder:
    """A :class:`evenmesh_retriever.ports.Encoder`, recorded."""

    def __init__(self, encoder: Encoder, metrics: RetrieverMetrics) -> None:
        self._encoder = encoder
        self._metrics = metrics
        self.name, self.fingerprint = encoder.name, encoder.fingerprint
        self.device, self.max_tokens = encoder.device, encoder.max_tokens
        self.dimension, self.precision = encoder.dimension, encoder.precision

    def count_tokens(self, texts: Sequence[str]) -> int:
        return self._encoder.count_tokens(texts)

    def encode_query(self, text: str) -> VectorArray:
        with self._metrics.encoding(self._encoder, "query", 1):
            return self._encoder.encode_query(text)

    def encode_passages(self, texts: Sequence[str], progress: Callable[[int], None]) -> VectorArray:
        with self._metrics.encoding(self._encoder, "passages", len(texts)):
            return self._encoder.encode_passages(texts, progress)


def _drawn(query: Query) -> Attributes:
    draw = query.draw
    if draw is None:
        return {}
    return {
        "evenmesh.sampling.alpha": draw.alpha if draw.target is None else None,
        "evenmesh.sampling.target": None if draw.target is None else in_words(draw.target),
        "evenmesh.sampling.seed": draw.seed,
        "evenmesh.sampling.rankings": draw.num_rankings,
    }
