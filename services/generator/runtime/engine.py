"""One model and everybody who waits for it."""

from __future__ import annotations

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from meshkit.errors import FailedPrecondition, MeshError, Unavailable, to_mesh_error
from services.generator.domain import GenerationRequest, ModelDescription, Normalization, RelevanceRequest
from services.generator.ports import Cancellation
from services.generator.runtime.outcomes import Listener, Outcome
from services.generator.runtime.prompting import Prompter
from services.generator.runtime.runner import Runner
from services.generator.runtime.statistics import EngineStatistics
from services.generator.runtime.tasks import Judgement, Task

__all__ = ["LanguageEngine", "Listener", "Outcome"]

_LOOK_S = 0.05
"""How often one who waits for a judgement looks whether the engine still runs."""


class LanguageEngine:
    """Runs the requests of one model. Every method may be called from any thread.

    Args:
        prompter: makes prompts, on threads of its own.
        loop: computes.
        workers: threads that make prompts, [1, inf).
    """

    def __init__(
        self, description: ModelDescription, prompter: Prompter, loop: Runner, *, workers: int = 1
    ) -> None:
        self._description = description
        self._prompter = prompter
        self._loop = loop
        self._preparing = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="engine-prompts")

    def describe(self) -> ModelDescription:
        """What the model is and can do."""
        return self._description

    def submit(self, request: GenerationRequest, cancel: Cancellation, listener: Listener) -> None:
        """Takes a request and returns at once; the listener hears of it, its end exactly once."""
        task = Task(request, cancel, listener)
        with self._lock:
            self._preparing += 1
        try:
            self._pool.submit(self._prepare, task)
        except RuntimeError:  # the pool is shut down
            with self._lock:
                self._preparing -= 1
            self._loop.end(task, Unavailable("STOPPED", "the model is being unloaded"))

    def judge(self, request: RelevanceRequest, cancel: Cancellation) -> list[float]:
        """P(True) per passage, each in [0, 1]; waits for the result.

        Raises:
            FailedPrecondition: the model cannot judge relevance.
            InvalidField: the question does not fit, or the template is none for judging.
            Cancelled, DeadlineExceeded: nobody waits any more.
        """
        cancel.check()
        prompts = self._prompter.judgements(request)
        verdicts = self._prompter.verdicts
        if verdicts is None:
            raise FailedPrecondition("NO_RELEVANCE", f"{self._description.name} cannot judge relevance")
        if not prompts:
            return []
        judgement = Judgement(prompts, verdicts.true, verdicts.false, cancel)
        self._loop.put(judgement)
        while True:
            try:
                scores = judgement.result.result(_LOOK_S)
            except FutureTimeoutError:
                cancel.check()
                continue
            over_both = request.normalization is Normalization.TRUE_FALSE
            return [
                1.0 / (1.0 + math.exp(min(false - true, 700.0))) if over_both else min(math.exp(true), 1.0)
                for true, false in scores
            ]

    def statistics(self) -> EngineStatistics:
        """What was done so far."""
        return self._loop.statistics(self._preparing)

    def close(self) -> None:
        """Ends the engine's threads; what still waits ends with UNAVAILABLE."""
        self._pool.shutdown(wait=True)
        self._loop.close()

    def _prepare(self, task: Task) -> None:
        """Makes a request's prompt and hands it to the loop."""
        outcome: Outcome | None = None
        try:
            if not task.cancel.cancelled:
                task.prompt = self._prompter.prompt(task.request)
                task.transcript = self._prompter.transcript(task.request)
        except MeshError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - told to who asked
            outcome = to_mesh_error(error)
        with self._lock:
            self._preparing -= 1
        if outcome is None:
            self._loop.put(task)
        else:
            self._loop.end(task, outcome)
