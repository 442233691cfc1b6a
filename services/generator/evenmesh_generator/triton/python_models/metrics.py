"""Publish a model's metrics through Triton: counts of its engine, and times of its answers.

Times have the names that OpenTelemetry's GenAI conventions come to in Prometheus; the rest is our own, called
as the fields of :class:`~evenmesh_generator.runtime.statistics.EngineStatistics`. All have the label
``model``, as Triton's own metrics do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from evenmesh_generator.domain import Answer
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.triton.python_models.backend import Backend, Metric

_PREFIX: Final = "evenmesh_generator_"
_INTERVAL_S: Final = 1.0
_LEVELS: Final = (
    "waiting",
    "active_requests",
    "active_rows",
    "cache_bytes",
    "most_steps_after_cancel",
)
_SECONDS: Final = (0.001, 0.0025, 0.005, *(0.01 * 2**power for power in range(12)))
_PER_TOKEN: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
    2.5,
)
_ROWS: Final = tuple(float(2**power) for power in range(11))


@dataclass(frozen=True, slots=True)
class _Measured:
    """A value measured on every answer; ``value`` returns None where it is undefined."""

    name: str
    description: str
    buckets: tuple[float, ...]
    value: Callable[[Answer], float | None]


_MEASURED: Final = (
    _Measured(
        "gen_ai_server_time_to_first_token_seconds",
        "From a request's arrival to its first token",
        _SECONDS,
        lambda answer: answer.cost.first_token_s,
    ),
    _Measured(
        "gen_ai_server_request_duration_seconds",
        "From a request's arrival to its last token",
        _SECONDS,
        lambda answer: answer.cost.total_s,
    ),
    _Measured(
        "gen_ai_server_time_per_output_token_seconds",
        "Between two tokens, on average over an answer",
        _PER_TOKEN,
        lambda answer: _between_tokens(answer),
    ),
    _Measured(
        f"{_PREFIX}queue_seconds",
        "From a request's arrival until it was taken up",
        _SECONDS,
        lambda answer: answer.cost.queue_s,
    ),
    _Measured(
        f"{_PREFIX}batch_rows",
        "Most rows computed together while an answer was written",
        _ROWS,
        lambda answer: answer.cost.batch_rows,
    ),
)


class EngineMetrics:
    """Publishes an engine's statistics at intervals, from its own thread: each value is a round trip.

    Does nothing where the server has no metrics.

    Args:
        model: name of the Triton model.
        statistics: what the engine has done so far.
    """

    def __init__(self, backend: Backend, model: str, statistics: Callable[[], EngineStatistics]) -> None:
        self._backend = backend
        self._labels = {"model": model}
        self._statistics = statistics
        self._published = EngineStatistics()
        self._answers: deque[Answer] = deque(maxlen=65536)
        # A family without references disappears from the metrics.
        self._families: list[Any] = []
        self._fields: dict[str, Metric] = {}
        self._histograms: list[tuple[_Measured, Metric]] = []
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        try:
            self._make()
        except Exception as error:  # noqa: BLE001 - a server without metrics
            backend.Logger.log_info(f"{model}: no metrics: {error}")
            return
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def observe(self, answer: Answer) -> None:
        """Record a finished answer; from any thread."""
        self._answers.append(answer)

    def close(self) -> None:
        """Stop the thread and release the metrics."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
        self._fields.clear()
        self._histograms.clear()
        self._families.clear()

    def _make(self) -> None:
        kinds = self._backend.MetricFamily
        for field in EngineStatistics.__dataclass_fields__:
            level = field in _LEVELS
            name = f"{_PREFIX}{field}" if level else f"{_PREFIX}{field}_total"
            kind = kinds.GAUGE if level else kinds.COUNTER
            self._fields[field] = self._family(name, f"{field.replace('_', ' ')} of the engine", kind).Metric(
                labels=self._labels
            )
        for one in _MEASURED:
            family = self._family(one.name, one.description, kinds.HISTOGRAM)
            metric = family.Metric(labels=self._labels, buckets=list(one.buckets))
            self._histograms.append((one, metric))

    def _family(self, name: str, description: str, kind: Any) -> Any:
        family = self._backend.MetricFamily(name=name, description=description, kind=kind)
        self._families.append(family)
        return family

    def _run(self) -> None:
        while not self._closed.wait(_INTERVAL_S):
            try:
                self._publish()
            except Exception as error:  # noqa: BLE001 - metrics are not worth an answer
                self._backend.Logger.log_warn(f"{self._labels['model']}: metrics: {error!r}")

    def _publish(self) -> None:
        now, before = self._statistics(), asdict(self._published)
        for field, value in asdict(now).items():
            if value == before[field]:
                continue
            if field in _LEVELS:
                self._fields[field].set(value)
            else:
                self._fields[field].increment(value - before[field])
        self._published = now
        for _ in range(len(self._answers)):
            answer = self._answers.popleft()
            for one, metric in self._histograms:
                value = one.value(answer)
                if value is not None:
                    metric.observe(value)


def _between_tokens(answer: Answer) -> float | None:
    if answer.completion_tokens < 2:
        return None
    return (answer.cost.total_s - answer.cost.first_token_s) / (answer.completion_tokens - 1)
