"""One model and everybody who waits for it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from meshkit.errors import MeshError, to_mesh_error
from services.generator.domain import Answer, GenerationRequest, ModelDescription, RelevanceRequest
from services.generator.ports import Cancellation, Cancelled
from services.generator.runtime.computed import ComputedModel
from services.generator.runtime.statistics import EngineStatistics

Outcome = Answer | MeshError | Cancelled
"""How a request ends."""


class Listener(Protocol):
    """Whom the engine tells of one request. Called on the engine's own thread: must return at once."""

    def on_delta(self, text: str) -> None:
        """More text; never empty."""
        ...

    def on_end(self, outcome: Outcome) -> None:
        """The last call: the answer, whose text is all deltas joined, or why there is none."""
        ...


class LanguageEngine:
    """Runs the requests of one model. Every method may be called from any thread."""

    def __init__(self, model: ComputedModel, *, workers: int = 1) -> None:
        self._model = model
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="engine")

    def describe(self) -> ModelDescription:
        """What the model is and can do."""
        return self._model.describe()

    def submit(self, request: GenerationRequest, cancel: Cancellation, listener: Listener) -> None:
        """Takes a request and returns at once; the listener hears of it, its end exactly once."""
        self._pool.submit(self._run, request, cancel, listener)

    def judge(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """P(True) per passage, each in [0, 1]; waits for the result.

        Raises:
            FailedPrecondition: the model cannot judge relevance.
            InvalidField: the question does not fit.
            Cancelled, DeadlineExceeded: nobody waits any more.
        """
        return self._model.relevance(request.question, request.passages, request.normalization, cancel)

    def statistics(self) -> EngineStatistics:
        """What was done so far."""
        return EngineStatistics()

    def close(self) -> None:
        """Ends the engine's threads; what still waits ends with UNAVAILABLE."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, request: GenerationRequest, cancel: Cancellation, listener: Listener) -> None:
        outcome: Outcome
        try:
            outcome = self._model.stream(request, cancel, listener.on_delta)
        except (MeshError, Cancelled) as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - told to who asked
            outcome = to_mesh_error(error)
        listener.on_end(outcome)
