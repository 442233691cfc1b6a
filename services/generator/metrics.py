"""What the generator tells a metrics system: OpenTelemetry's GenAI names, and our own where it has none.

The GenAI names are literals here because the package that has them as constants
(``opentelemetry.semconv._incubating``) is marked as moved away; a test holds the two against each other.
Every point has ``gen_ai.operation.name`` (`text_completion` or `score_relevance`), ``gen_ai.provider.name``
(`ragmesh`) and ``gen_ai.request.model``; what was computed also has ``gen_ai.response.model`` (name@version)
and ``ragmesh.generator.engine``; what failed has ``error.type``, the error's reason. Answers that a batch
only repeats (:class:`~services.generator.engine.Finished`, ``reused``) are not recorded: no model was asked.

Cache hit rate: ``ragmesh.generator.tokens.reused`` over itself and ``ragmesh.generator.tokens.computed``.
Tokens per second: the rate of ``ragmesh.generator.tokens.written``, or, of answers once they are finished, of
the sum of ``gen_ai.client.token.usage``. Mean rows of a step: ``ragmesh.generator.step.rows`` over
``ragmesh.generator.steps``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from meshkit.errors import MeshError
from meshkit.telemetry import Telemetry
from services.generator.domain import ModelDescription
from services.generator.engine import Finished, Judged
from services.generator.ports import Cancelled
from services.generator.runtime.statistics import EngineStatistics

TEXT_COMPLETION: Final = "text_completion"
"""``gen_ai.operation.name`` of answers."""
SCORE_RELEVANCE: Final = "score_relevance"
"""``gen_ai.operation.name`` of judgements, which the conventions have no name for."""

_OPERATION: Final = "gen_ai.operation.name"
_PROVIDER: Final = "gen_ai.provider.name"
_REQUEST_MODEL: Final = "gen_ai.request.model"
_RESPONSE_MODEL: Final = "gen_ai.response.model"
_TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105
_ERROR_TYPE: Final = "error.type"
_ENGINE: Final = "ragmesh.generator.engine"

# The conventions' own boundaries, with finer ones below where small models are faster than they foresee.
_DURATION_S: Final = [0.001, 0.0025, 0.005] + [0.01 * 2**power for power in range(14)]
_FIRST_TOKEN_S: Final = [
    0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
]  # fmt: skip
_PER_TOKEN_S: Final = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
]  # fmt: skip
_TOKENS: Final = [float(4**power) for power in range(14)]
_ROWS: Final = [float(2**power) for power in range(11)]


@dataclass(frozen=True, slots=True)
class _Watched:
    """A field of :class:`EngineStatistics` as a metric."""

    field: str
    name: str
    unit: str
    description: str


_LEVELS: Final = (
    _Watched("waiting", "ragmesh.generator.requests.waiting", "{request}", "Requests not taken up yet."),
    _Watched("active_requests", "ragmesh.generator.requests.active", "{request}", "Requests being computed."),
    _Watched("active_rows", "ragmesh.generator.rows.active", "{row}", "Rows of the running batch."),
    _Watched("cache_bytes", "ragmesh.generator.cache.size", "By", "Size of the encodings kept."),
)
_COUNTS: Final = (
    _Watched("finished", "ragmesh.generator.requests.finished", "{request}", "Requests answered."),
    _Watched("cancelled", "ragmesh.generator.requests.cancelled", "{request}", "Requests nobody waited for."),
    _Watched("failed", "ragmesh.generator.requests.failed", "{request}", "Requests that failed."),
    _Watched("steps", "ragmesh.generator.steps", "{step}", "Decoder steps."),
    _Watched("step_rows", "ragmesh.generator.step.rows", "{row}", "Rows of all decoder steps together."),
    _Watched("written_tokens", "ragmesh.generator.tokens.written", "{token}", "Tokens written, as they are."),
    _Watched("prefills", "ragmesh.generator.prefills", "{pass}", "Passes over prompts."),
    _Watched("cache_hits", "ragmesh.generator.cache.hits", "{encoding}", "Encodings found."),
    _Watched("cache_misses", "ragmesh.generator.cache.misses", "{encoding}", "Encodings not found."),
    _Watched("judged", "ragmesh.generator.passages.judged", "{passage}", "Passages judged."),
    _Watched("judge_batches", "ragmesh.generator.judge.batches", "{pass}", "Passes of judging."),
)  # fmt: skip


class GeneratorMetrics:
    """Records what answers and judgements cost; does nothing where telemetry is disabled."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._enabled = telemetry.enabled
        self._engines: dict[str, Callable[[], EngineStatistics]] = {}
        meter = telemetry.meter
        self._duration = _histogram(
            meter,
            "gen_ai.server.request.duration",
            "s",
            "From a request's arrival to its last token.",
            _DURATION_S,
        )
        self._first_token = _histogram(
            meter,
            "gen_ai.server.time_to_first_token",
            "s",
            "From a request's arrival to its first token.",
            _FIRST_TOKEN_S,
        )
        self._per_token = _histogram(
            meter,
            "gen_ai.server.time_per_output_token",
            "s",
            "Mean time between two tokens of an answer.",
            _PER_TOKEN_S,
        )
        self._usage = _histogram(
            meter,
            "gen_ai.client.token.usage",
            "{token}",
            "Tokens read (input) and written (output).",
            _TOKENS,
        )
        self._queue = _histogram(
            meter,
            "ragmesh.generator.queue.duration",
            "s",
            "Wait until the model took a request up.",
            _DURATION_S,
        )
        self._rows = _histogram(
            meter,
            "ragmesh.generator.batch.rows",
            "{row}",
            "Most rows computed together while an answer was written.",
            _ROWS,
        )
        self._computed = meter.create_counter(
            "ragmesh.generator.tokens.computed", "{token}", "Prompt tokens that were computed."
        )
        self._reused = meter.create_counter(
            "ragmesh.generator.tokens.reused",
            "{token}",
            "Prompt tokens whose encodings were there already.",
        )
        if self._enabled:
            for one in _LEVELS:
                meter.create_observable_gauge(one.name, [self._observed(one)], one.unit, one.description)
            for one in _COUNTS:
                meter.create_observable_counter(one.name, [self._observed(one)], one.unit, one.description)

    def watch(self, model: str, statistics: Callable[[], EngineStatistics]) -> None:
        """Has what an engine did so far read, from any thread, whenever metrics are collected."""
        self._engines[model] = statistics

    @contextmanager
    def failures(self, operation: str, model: str) -> Iterator[None]:
        """Records how the block fails, if it does: its duration and why.

        Args:
            operation: :data:`TEXT_COMPLETION` or :data:`SCORE_RELEVANCE`.
            model: name of a model of this server; empty if the request named none of them.
        """
        began = time.perf_counter()
        try:
            yield
        except BaseException as error:
            self.failed(operation, model, error, time.perf_counter() - began)
            raise

    def failed(self, operation: str, model: str, error: BaseException, duration_s: float) -> None:
        """Records one request that has no answer."""
        if not self._enabled:
            return
        attributes = _requested(operation, model)
        attributes[_ERROR_TYPE] = _error_type(error)
        self._duration.record(duration_s, attributes)

    def answered(self, finished: Finished) -> None:
        """Records one answer, by what its model says it cost."""
        if not self._enabled or finished.reused:
            return
        answer, cost = finished.answer, finished.answer.cost
        attributes = _computed(TEXT_COMPLETION, finished.model, answer.model_version)
        self._duration.record(cost.total_s, attributes)
        self._first_token.record(cost.first_token_s, attributes)
        if answer.completion_tokens > 1:
            between_s = (cost.total_s - cost.first_token_s) / (answer.completion_tokens - 1)
            self._per_token.record(max(0.0, between_s), attributes)
        self._usage.record(answer.prompt_tokens, {**attributes, _TOKEN_TYPE: "input"})
        self._usage.record(finished.written_tokens, {**attributes, _TOKEN_TYPE: "output"})
        self._queue.record(cost.queue_s, attributes)
        self._rows.record(cost.batch_rows, attributes)
        self._computed.add(cost.computed_tokens, attributes)
        self._reused.add(cost.reused_tokens, attributes)

    def judged(self, judged: Judged, duration_s: float) -> None:
        """Records one judgement of any number of passages."""
        if self._enabled:
            self._duration.record(duration_s, _computed(SCORE_RELEVANCE, judged.model, ""))

    def _observed(self, watched: _Watched) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(getattr(statistics(), watched.field), {_REQUEST_MODEL: model})
                for model, statistics in self._engines.items()
            ]

        return read


def _histogram(meter: Meter, name: str, unit: str, description: str, boundaries: list[float]) -> Histogram:
    return meter.create_histogram(
        name, unit=unit, description=description, explicit_bucket_boundaries_advisory=boundaries
    )


def _requested(operation: str, model: str) -> dict[str, str]:
    attributes = {_OPERATION: operation, _PROVIDER: "ragmesh"}
    if model:
        attributes[_REQUEST_MODEL] = model
    return attributes


def _computed(operation: str, model: ModelDescription, version: str) -> Mapping[str, str]:
    return {
        **_requested(operation, model.name),
        _RESPONSE_MODEL: f"{model.name}@{version or model.version}",
        _ENGINE: model.engine,
    }


def _error_type(error: BaseException) -> str:
    if isinstance(error, MeshError):
        return error.reason
    if isinstance(error, Cancelled | asyncio.CancelledError | GeneratorExit):
        return "CANCELLED"
    return type(error).__qualname__
