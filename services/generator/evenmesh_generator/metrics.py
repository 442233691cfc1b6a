"""Metrics of the generator: OpenTelemetry's GenAI names, and our own where it has none.

Every point has ``gen_ai.operation.name`` (`text_completion` or `score_relevance`), ``gen_ai.provider.name``
(`evenmesh`) and ``gen_ai.request.model``; what was computed also has ``gen_ai.response.model`` (name@version)
and ``evenmesh.generator.engine``; what failed has ``error.type``, the error's reason. Answers that a batch
only repeats (:class:`~evenmesh_generator.engine.GeneratedAnswer`, ``reused``) are not recorded: no model was
asked.

Cache hit rate: ``evenmesh.generator.tokens.reused`` over itself and ``evenmesh.generator.tokens.computed``.
Tokens per second: the rate of ``evenmesh.generator.tokens.written``, or, of answers once they are finished,
of the sum of ``gen_ai.client.token.usage``. Mean rows of a step: ``evenmesh.generator.step.rows`` over
``evenmesh.generator.steps``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from opentelemetry.metrics import CallbackOptions, Histogram, Observation

from evenmesh_generator.domain import ModelDescription
from evenmesh_generator.engine import GeneratedAnswer, RelevanceScores
from evenmesh_generator.ports import Cancelled
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_kit.telemetry import gen_ai
from evenmesh_kit.telemetry.setup import Telemetry
from evenmesh_kit.telemetry.spans import reason_of

SCORE_RELEVANCE: Final = "score_relevance"
"""``gen_ai.operation.name`` of judgements, which the conventions have no name for."""

_ERROR_TYPE: Final = "error.type"
_PREFIX: Final = "evenmesh.generator."
_ENGINE: Final = _PREFIX + "engine"

# The conventions' own boundaries, with finer ones below for small, fast models.
_DURATION_S: Final = [0.001, 0.0025, 0.005] + [0.01 * 2**power for power in range(14)]
_FIRST_TOKEN_S: Final = [
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
]  # fmt: skip
_PER_TOKEN_S: Final = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
]  # fmt: skip
_TOKENS: Final = [float(4**power) for power in range(14)]
_ROWS: Final = [float(2**power) for power in range(11)]


class ServerPlaces(Protocol):
    """Places for running requests at model servers; read from any thread."""

    @property
    def held(self) -> int:
        """Return the requests at the servers."""

    @property
    def waiting(self) -> int:
        """Return the requests that wait for a place at one."""


@dataclass(frozen=True, slots=True)
class _Watched:
    """A field of :class:`EngineStatistics` as the metric ``evenmesh.generator.<name>``."""

    field: str
    name: str
    unit: str
    description: str


_LEVELS: Final = (
    _Watched("waiting", "requests.waiting", "{request}", "Requests not taken up yet."),
    _Watched("active_requests", "requests.active", "{request}", "Requests being computed."),
    _Watched("active_rows", "rows.active", "{row}", "Rows of the running batch."),
    _Watched("cache_bytes", "cache.size", "By", "Size of the encodings kept."),
)
_COUNTS: Final = (
    _Watched("finished", "requests.finished", "{request}", "Requests answered."),
    _Watched("cancelled", "requests.cancelled", "{request}", "Requests nobody waited for."),
    _Watched("failed", "requests.failed", "{request}", "Requests that failed."),
    _Watched("steps", "steps", "{step}", "Decoder steps."),
    _Watched("step_rows", "step.rows", "{row}", "Rows of all decoder steps together."),
    _Watched("written_tokens", "tokens.written", "{token}", "Tokens written, as they are."),
    _Watched("prefills", "prefills", "{pass}", "Passes over prompts."),
    _Watched("cache_hits", "cache.hits", "{encoding}", "Encodings found."),
    _Watched("cache_misses", "cache.misses", "{encoding}", "Encodings not found."),
    _Watched("judged", "passages.judged", "{passage}", "Passages judged."),
    _Watched("judge_batches", "judge.batches", "{pass}", "Passes of judging."),
)


_PLACES: Final[tuple[tuple[str, str, Callable[[ServerPlaces], int]], ...]] = (
    ("places.held", "Requests at model servers.", lambda places: places.held),
    ("places.waiting", "Requests that wait for a place at a model server.", lambda places: places.waiting),
)


class GeneratorMetrics:
    """Records what answers and judgements cost; does nothing where telemetry is disabled."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._enabled = telemetry.enabled
        self._engines: dict[str, Callable[[], EngineStatistics]] = {}
        self._places: list[ServerPlaces] = []
        meter = telemetry.meter

        def histogram(name: str, unit: str, description: str, boundaries: list[float]) -> Histogram:
            return meter.create_histogram(
                name, unit=unit, description=description, explicit_bucket_boundaries_advisory=boundaries
            )

        server = "gen_ai.server."
        self._duration = histogram(
            server + "request.duration", "s", "From a request's arrival to its last token.", _DURATION_S
        )
        self._first_token = histogram(
            server + "time_to_first_token",
            "s",
            "From a request's arrival to its first token.",
            _FIRST_TOKEN_S,
        )
        self._per_token = histogram(
            server + "time_per_output_token", "s", "Mean time between two tokens of an answer.", _PER_TOKEN_S
        )
        self._usage = histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens read (input) and written (output).", _TOKENS
        )
        self._queue = histogram(
            _PREFIX + "queue.duration", "s", "Wait until the model took a request up.", _DURATION_S
        )
        self._rows = histogram(
            _PREFIX + "batch.rows", "{row}", "Most rows computed together while an answer was written.", _ROWS
        )
        self._computed = meter.create_counter(
            _PREFIX + "tokens.computed", "{token}", "Prompt tokens that were computed."
        )
        self._reused = meter.create_counter(
            _PREFIX + "tokens.reused",
            "{token}",
            "Prompt tokens whose encodings were cached.",
        )
        if self._enabled:
            for one in _LEVELS:
                meter.create_observable_gauge(
                    _PREFIX + one.name, [self._observed(one)], one.unit, one.description
                )
            for name, description, count in _PLACES:
                meter.create_observable_gauge(
                    _PREFIX + name, [self._observed_places(count)], "{request}", description
                )
            for one in _COUNTS:
                meter.create_observable_counter(
                    _PREFIX + one.name, [self._observed(one)], one.unit, one.description
                )

    def watch(self, model: str, statistics: Callable[[], EngineStatistics]) -> None:
        """Read an engine's counts whenever metrics are collected, from any thread."""
        self._engines[model] = statistics

    def watch_places(self, places: ServerPlaces) -> None:
        """Read who is at a model server, and who waits for that, whenever metrics are collected."""
        self._places.append(places)

    @contextmanager
    def failures(self, operation: str, model: str) -> Iterator[None]:
        """Record the duration and the reason if the block fails.

        Args:
            operation: :data:`~evenmesh_kit.telemetry.gen_ai.TEXT_COMPLETION` or :data:`SCORE_RELEVANCE`.
            model: name of a model of this server; empty if the request named none of them.
        """
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            self.failed(operation, model, error, time.perf_counter() - began)
            raise

    def failed(self, operation: str, model: str, error: BaseException, duration_s: float) -> None:
        """Record one request that has no answer."""
        if not self._enabled:
            return
        attributes = _requested(operation, model)
        attributes[_ERROR_TYPE] = _error_type(error)
        self._duration.record(duration_s, attributes)

    def answered(self, finished: GeneratedAnswer) -> None:
        """Record one answer and its cost."""
        if not self._enabled or finished.reused:
            return
        answer, cost = finished.answer, finished.answer.cost
        attributes = _computed(gen_ai.TEXT_COMPLETION, finished.model, answer.model_version)
        self._duration.record(cost.total_s, attributes)
        self._first_token.record(cost.first_token_s, attributes)
        if answer.completion_tokens > 1:
            between_s = (cost.total_s - cost.first_token_s) / (answer.completion_tokens - 1)
            self._per_token.record(max(0.0, between_s), attributes)
        self._usage.record(answer.prompt_tokens, {**attributes, gen_ai.TOKEN_TYPE: "input"})
        self._usage.record(finished.written_tokens, {**attributes, gen_ai.TOKEN_TYPE: "output"})
        self._queue.record(cost.queue_s, attributes)
        self._rows.record(cost.batch_rows, attributes)
        self._computed.add(cost.computed_tokens, attributes)
        self._reused.add(cost.reused_tokens, attributes)

    def judged(self, judged: RelevanceScores, duration_s: float) -> None:
        """Record one judgement of any number of passages."""
        if self._enabled:
            self._duration.record(duration_s, _computed(SCORE_RELEVANCE, judged.model, ""))

    def _observed_places(
        self, count: Callable[[ServerPlaces], int]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            return [Observation(sum(map(count, self._places)))] if self._places else []

        return read

    def _observed(self, watched: _Watched) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(getattr(statistics(), watched.field), {gen_ai.REQUEST_MODEL: model})
                for model, statistics in self._engines.items()
            ]

        return read


def _requested(operation: str, model: str) -> dict[str, str]:
    attributes = {gen_ai.OPERATION: operation, gen_ai.PROVIDER: "evenmesh"}
    if model:
        attributes[gen_ai.REQUEST_MODEL] = model
    return attributes


def _computed(operation: str, model: ModelDescription, version: str) -> Mapping[str, str]:
    return {
        **_requested(operation, model.name),
        gen_ai.RESPONSE_MODEL: f"{model.name}@{version or model.version}",
        _ENGINE: model.engine,
    }


def _error_type(error: BaseException) -> str:
    return "CANCELLED" if isinstance(error, Cancelled) else reason_of(error)
