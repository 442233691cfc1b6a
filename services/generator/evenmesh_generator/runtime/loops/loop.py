"""What every loop shares: arrivals, outcomes, counts and the thread."""

from __future__ import annotations

import abc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import InvalidStateError
from typing import TypeVar

import torch

from evenmesh.wire.errors import DeadlineExceeded, MeshError, Unavailable
from evenmesh_generator.ports import Cancelled
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.runtime.tasks import Judgement, Outcome, Task
from evenmesh_kit.compute.tenant_turns import TenantTurns
from evenmesh_kit.compute.thread_names import name_thread
from evenmesh_kit.rpc.statuses import to_mesh_error

E = TypeVar("E", bound=Exception)

_log = logging.getLogger("evenmesh.generator.runtime")


class Loop(abc.ABC):
    """Computes requests in its own thread, which a subclass does in :meth:`_run`.

    Args:
        name: of the model.
        threads: threads of an operation of PyTorch, [1, inf); None: those of the thread that makes it.
    """

    def __init__(self, name: str, *, threads: int | None = None) -> None:
        mine = torch.get_num_threads()  # asked in any case: a thread keeps the number that it first has
        self._threads = threads or mine
        self._changed = threading.Condition()
        self._arrivals: TenantTurns[Task | Judgement] = TenantTurns(lambda item: item.tenant)
        self._closed = False
        self._counts = EngineStatistics()
        self._thread = threading.Thread(target=self._run_named, name=f"engine-{name}", daemon=True)

    def put(self, item: Task | Judgement) -> None:
        """Accept a request that has a prompt, or passages to judge; from any thread."""
        with self._changed:
            closed = self._closed
            if not closed:
                self._arrivals.append(item)
                self._changed.notify()
        if closed:
            self._refuse(item, stopped())

    def end(self, task: Task, outcome: Outcome) -> None:
        """End a request; from any thread."""
        if isinstance(outcome, Exception):
            outcome = _without_frames(outcome)
        with self._changed:
            if isinstance(outcome, Cancelled | DeadlineExceeded):
                self._counts.cancelled += 1
            elif isinstance(outcome, MeshError):
                self._counts.failed += 1
            else:
                self._counts.finished += 1
        notify(task, lambda: task.listener.on_end(outcome))

    def close(self) -> None:
        """Stop at the next token; unfinished requests end with UNAVAILABLE."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @abc.abstractmethod
    def statistics(self, preparing: int) -> EngineStatistics:
        """Return the counts so far, from any thread; ``preparing``: requests that have no prompt yet."""

    def _run_named(self) -> None:
        name_thread()
        torch.set_num_threads(self._threads)
        self._run()

    @abc.abstractmethod
    def _run(self) -> None:
        """Compute until closed; the body of the thread, which the subclass starts."""

    def _refuse(self, item: Task | Judgement, error: MeshError | Cancelled) -> None:
        """End a request or a judgement with an error."""
        if isinstance(item, Task):
            self.end(item, error)
            return
        try:
            item.result.set_exception(_without_frames(error))
        except InvalidStateError:
            _log.debug("a judgement failed that nobody waits for")

    def _settle(self, judgement: Judgement) -> None:
        """Hand out the scores of a judgement."""
        try:
            judgement.result.set_result([judgement.scores[at] for at in range(len(judgement.prompts))])
        except InvalidStateError:
            _log.debug("a judgement was made that nobody waits for")

    def _note_late_step(self, task: Task) -> None:
        """Count a step that ended after its request was cancelled."""
        task.late_steps += 1
        self._counts.most_steps_after_cancel = max(self._counts.most_steps_after_cancel, task.late_steps)


def _without_frames(error: E) -> E:
    """Return the error without its traceback.

    Listeners keep errors, and a traceback keeps the frames of the loop, with the batch and its buffers in
    them: a cycle, whose memory is free only when Python looks for cycles.
    """
    return error.with_traceback(None)


def notify(task: Task, call: Callable[[], None]) -> None:
    """Call a task's listener; one that fails is not called again."""
    try:
        call()
    except Exception:  # noqa: BLE001 - one listener's fault must not stop the others
        if not task.lost:
            _log.warning("a listener failed", exc_info=True)
        task.lost = True


def answered(task: Task, as_mesh_error: Callable[[Exception], MeshError] = to_mesh_error) -> Outcome:
    """Return the answer of a request that is done, or why there is none."""
    try:
        return task.answer()
    except Exception as error:  # noqa: BLE001 - one answer's fault must not stop the others
        return as_mesh_error(error)


def why_cancelled(item: Task | Judgement) -> MeshError | Cancelled:
    """Return why a request was cancelled."""
    try:
        item.cancel.check()
    except (MeshError, Cancelled) as error:
        return error
    return Cancelled()


def stopped() -> MeshError:
    """Return the error of requests whose model is being unloaded."""
    return Unavailable("STOPPED", "the model is being unloaded")
