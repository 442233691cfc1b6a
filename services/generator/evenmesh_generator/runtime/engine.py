"""Run the requests of one model; tenants take turns at every step of the way."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from evenmesh.wire.errors import FailedPrecondition, MeshError
from evenmesh_generator.domain import GenerationRequest, ModelDescription, Normalization, RelevanceRequest
from evenmesh_generator.ports import Cancellation, Cancelled
from evenmesh_generator.runtime.loops.loop import Loop, stopped, why_cancelled
from evenmesh_generator.runtime.prompts.stopped_transcript import StoppedTranscript
from evenmesh_generator.runtime.prompts.text_prompter import Prompter
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.runtime.tasks import Judgement, Listener, Outcome, Task
from evenmesh_kit.compute.tenant_turns import TenantTurns
from evenmesh_kit.compute.thread_names import name_thread
from evenmesh_kit.rpc.statuses import to_mesh_error


@dataclass(eq=False, slots=True)
class _Question:
    """Passages to judge that have no prompts yet."""

    request: RelevanceRequest
    cancel: Cancellation
    result: Future[list[float]] = field(default_factory=Future)

    @property
    def tenant(self) -> str:
        """Return the tenant of the request."""
        return self.request.tenant


class LanguageEngine:
    """Runs the requests of one model. Every method may be called from any thread.

    Args:
        prompter: makes prompts, on its own threads.
        loop: computes.
        workers: threads that make prompts, [1, inf).
    """

    def __init__(
        self, description: ModelDescription, prompter: Prompter, loop: Loop, *, workers: int = 1
    ) -> None:
        self._description = description
        self._prompter = prompter
        self._loop = loop
        self._preparing = 0
        self._lock = threading.Lock()
        self._waiting: TenantTurns[Task | _Question] = TenantTurns(lambda item: item.tenant)
        self._pool = ThreadPoolExecutor(workers, "engine-prompts", initializer=name_thread)

    def describe(self) -> ModelDescription:
        """Return what the model is and can do."""
        return self._description

    def submit(self, request: GenerationRequest, cancel: Cancellation, listener: Listener) -> None:
        """Accept a request and return at once; the listener receives its end exactly once."""
        task = Task(request, cancel, listener)
        with self._lock:
            self._preparing += 1
        if not self._enqueue(task):
            with self._lock:
                self._preparing -= 1
            self._loop.end(task, stopped())

    def judge(self, request: RelevanceRequest, cancel: Cancellation) -> Future[list[float]]:
        """Accept passages to judge; the result is P(True) per passage, each in [0, 1].

        The result raises FailedPrecondition if the model cannot judge relevance, InvalidField if the question
        does not fit or the template is none for judging, and Cancelled or DeadlineExceeded if nobody waits
        any more.
        """
        question = _Question(request, cancel)
        if not self._enqueue(question):
            question.result.set_exception(stopped())
        return question.result

    def statistics(self) -> EngineStatistics:
        """Return the counts so far."""
        return self._loop.statistics(self._preparing)

    def close(self) -> None:
        """Stop the engine's threads; waiting requests end with UNAVAILABLE."""
        self._pool.shutdown(wait=True)
        self._loop.close()

    def _enqueue(self, item: Task | _Question) -> bool:
        """Queue a request for a thread that makes prompts; return False once the engine is closed."""
        with self._lock:
            self._waiting.append(item)
        try:
            self._pool.submit(self._prepare_next)
        except RuntimeError:  # the pool is shut down
            with self._lock:
                self._waiting.remove(item)
            return False
        return True

    def _prepare_next(self) -> None:
        with self._lock:
            item = self._waiting.popleft()
        if isinstance(item, Task):
            self._prepare(item)
        else:
            self._prepare_judgement(item)

    def _prepare(self, task: Task) -> None:
        """Make a request's prompt and pass it to the loop."""
        outcome: Outcome | None = None
        try:
            if task.cancel.cancelled:  # a loop gets nothing without a prompt
                outcome = why_cancelled(task)
            else:
                prompt = self._prompter.prompt(task.request)
                task.prompt = replace(prompt, tenant=task.tenant)
                task.transcript = self._prompter.transcript(task.request, prompt)
                if task.request.decoding.stop:
                    task.transcript = StoppedTranscript(task.transcript, task.request.decoding.stop)
        except MeshError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - the caller receives it
            outcome = to_mesh_error(error)
        with self._lock:
            self._preparing -= 1
        if outcome is None:
            self._loop.put(task)
        else:
            self._loop.end(task, outcome)

    def _prepare_judgement(self, question: _Question) -> None:
        """Make the prompts of passages to judge and pass them to the loop."""
        request, result = question.request, question.result
        try:
            question.cancel.check()
            prompts = [
                replace(prompt, tenant=question.tenant) for prompt in self._prompter.judgements(request)
            ]
            verdicts = self._prompter.verdicts
            if verdicts is None:
                raise FailedPrecondition("NO_RELEVANCE", f"{self._description.name} cannot judge relevance")
        except Exception as error:  # noqa: BLE001 - the caller receives it
            reported = error if isinstance(error, Cancelled) else to_mesh_error(error)
            _settle(lambda: result.set_exception(reported))
            return
        if not prompts:
            _settle(lambda: result.set_result([]))
            return
        judgement = Judgement(prompts, verdicts.true, verdicts.false, question.cancel, question.tenant)

        def finish(done: Future[list[tuple[float, float]]]) -> None:
            error = done.exception()
            if error is not None:
                _settle(lambda: result.set_exception(error))
            else:
                _settle(lambda: result.set_result(_probabilities(request, done.result())))

        judgement.result.add_done_callback(finish)
        self._loop.put(judgement)


def _probabilities(request: RelevanceRequest, scores: list[tuple[float, float]]) -> list[float]:
    over_both = request.normalization is Normalization.TRUE_FALSE
    return [
        1.0 / (1.0 + math.exp(min(false - true, 700.0))) if over_both else min(math.exp(true), 1.0)
        for true, false in scores
    ]


def _settle(settle: Callable[[], None]) -> None:
    """Settle a result, unless its caller has cancelled it."""
    with contextlib.suppress(InvalidStateError):
        settle()
