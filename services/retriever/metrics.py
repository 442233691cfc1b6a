"""What the retriever tells of its work: searches, draws and encodings, in metrics and spans; collections.

Spans are `search`, within it `encode` where a query's vector is made and `sample` where rankings are drawn.
Their attributes have OpenTelemetry's names where it has any, which are literals for the reason that
:mod:`services.generator.metrics` gives; a test holds them against the package. Text of users is in none of
them unless the settings say so, nor are ids of passages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.util.types import AttributeValue

from meshkit.spans import Attributes, Spans, describe
from meshkit.telemetry import Telemetry
from services.retriever.domain import CollectionInfo, Query, Retrieval, VectorArray
from services.retriever.ports import Encoder

Collections = Callable[[], Iterable[tuple[str, CollectionInfo]]]
"""Gives each collection there is with its tenant; called from any thread."""

OPERATION: Final = "gen_ai.operation.name"
DATA_SOURCE: Final = "gen_ai.data_source.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
DIMENSION: Final = "gen_ai.embeddings.dimension.count"
QUERY_TEXT: Final = "gen_ai.retrieval.query.text"
DOCUMENTS: Final = "gen_ai.retrieval.documents"

RETRIEVAL: Final = "retrieval"
EMBEDDINGS: Final = "embeddings"

_SECONDS: Final = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
]  # fmt: skip
_DEFAULT_SERIES: Final = 20
_NOTHING: Final[AbstractContextManager[None]] = nullcontext()


class RetrieverMetrics:
    """Records it; costs nothing where telemetry is disabled.

    Args:
        telemetry: has meter and tracer.
        series: most collections that are told of by name, the largest.
    """

    def __init__(self, telemetry: Telemetry, *, series: int = _DEFAULT_SERIES) -> None:
        self._enabled = telemetry.enabled
        self._spans = Spans(telemetry)
        self._series = series
        meter = telemetry.meter
        self._searches = meter.create_histogram(
            "ragmesh.retriever.search.duration",
            "s",
            "Scoring and ranking of a query, in its thread.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._samples = meter.create_histogram(
            "ragmesh.retriever.sample.duration",
            "s",
            "Of it, what drawing rankings takes.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._rankings = meter.create_counter(
            "ragmesh.retriever.sampled.rankings", "{ranking}", "Rankings drawn."
        )
        self._encodings = meter.create_histogram(
            "ragmesh.retriever.encode.duration",
            "s",
            "Calls of the dense encoder.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._texts = meter.create_counter(
            "ragmesh.retriever.encoded.texts", "{text}", "Texts that the dense encoder made vectors of."
        )
        self._meter = meter

    def searched(self, retriever: str, query: Query, find: Callable[[], Retrieval]) -> Retrieval:
        """What ``find`` finds, recorded. To be called in the thread that searches."""
        if not self._enabled:
            return find()
        began = time.perf_counter()
        with self._spans.within("search", lambda: self._asked(retriever, query)) as span:
            retrieval = find()
            attributes: dict[str, AttributeValue] = {"retriever": retrieval.retriever}
            attributes["sampled"] = query.draw is not None
            self._searches.record(time.perf_counter() - began, attributes)
            if span.is_recording():
                describe(span, self._found(retrieval))
            return retrieval

    def sampling(self, retriever: str, query: Query) -> AbstractContextManager[None]:
        """Records the block as the drawing of rankings, if the query wants any."""
        return self._drawing(retriever, query) if self._enabled and query.draw is not None else _NOTHING

    def encoder(self, encoder: Encoder) -> Encoder:
        """The encoder, recorded."""
        return _MeasuredEncoder(encoder, self) if self._enabled else encoder

    @contextmanager
    def encoding(self, encoder: Encoder, kind: str, texts: int) -> Iterator[None]:
        """Records the block as the encoding of texts; ``kind`` is `query` or `passages`."""
        began = time.perf_counter()
        described: Attributes = {
            OPERATION: EMBEDDINGS,
            REQUEST_MODEL: encoder.name,
            DIMENSION: encoder.dimension,
        }
        with self._spans.within("encode", lambda: described):
            yield
            self._encodings.record(time.perf_counter() - began, {"input": kind})
            self._texts.add(texts, {"input": kind})

    def watch(self, collections: Collections) -> None:
        """Has the collections read whenever metrics are collected."""
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
        gauge("ragmesh.retriever.collections", [count], "{collection}", "Collections served.")
        gauge(
            "ragmesh.retriever.collection.passages",
            [each(lambda info: info.num_passages)],
            "{passage}",
            "Passages of a collection.",
        )
        gauge(
            "ragmesh.retriever.collection.size",
            [each(lambda info: info.size_bytes)],
            "By",
            "Size of a collection.",
        )
        gauge(
            "ragmesh.retriever.collection.embedded",
            [each(lambda info: info.embedded if info.encoder else None)],
            "1",
            "Share of a collection's passages that have a vector.",
        )
        gauge(
            "ragmesh.retriever.collection.tombstones",
            [each(lambda info: info.num_tombstones)],
            "{passage}",
            "Passages of a collection that are gone and still on disk.",
        )
        gauge(
            "ragmesh.retriever.collection.updated.timestamp",
            [each(lambda info: info.updated_at.timestamp())],
            "s",
            "When a collection was last changed, since 1970.",
        )
        gauge(
            "ragmesh.retriever.collection.info",
            [each(lambda _: 1, lambda info: {"version": info.version, "encoder": info.encoder})],
            description="Versions that are served: 1.",
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
            OPERATION: RETRIEVAL,
            DATA_SOURCE: query.collection or None,
            "ragmesh.retriever": retriever,
            "ragmesh.retrieval.depth": query.depth,
            "ragmesh.retrieval.k": query.k,
            "ragmesh.retrieval.candidates": None if query.candidates is None else len(query.candidates),
            QUERY_TEXT: query.text if self._spans.text else None,
            **_drawn(query),
        }

    def _found(self, retrieval: Retrieval) -> Attributes:
        scored: Iterable[tuple[str, float]] = ()
        if self._spans.text:
            ids = [passage.id for passage in retrieval.passages]
            scored = zip(ids, retrieval.scores.tolist(), strict=True)
        return {
            "ragmesh.index.version": retrieval.version or None,
            "ragmesh.retrieval.returned": len(retrieval.passages),
            "ragmesh.retrieval.rankings": len(retrieval.rankings),
            DOCUMENTS: json.dumps([{"id": id_, "score": score} for id_, score in scored])
            if self._spans.text
            else None,
        }


class _MeasuredEncoder:
    """A :class:`services.retriever.ports.Encoder`, recorded."""

    def __init__(self, encoder: Encoder, metrics: RetrieverMetrics) -> None:
        self._encoder = encoder
        self._metrics = metrics

    @property
    def name(self) -> str:
        return self._encoder.name

    @property
    def fingerprint(self) -> str:
        return self._encoder.fingerprint

    @property
    def dimension(self) -> int:
        return self._encoder.dimension

    @property
    def device(self) -> str:
        return self._encoder.device

    @property
    def precision(self) -> str:
        return self._encoder.precision

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
        "ragmesh.sampling.alpha": draw.alpha,
        "ragmesh.sampling.seed": draw.seed,
        "ragmesh.sampling.rankings": draw.num_rankings,
    }
