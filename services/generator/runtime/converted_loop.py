"""Requests of a converted model, in batches: those that wait together run together."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from meshkit.errors import DeadlineExceeded, InvalidField, MeshError, Unavailable, to_mesh_error
from meshkit.lengths import by_length
from services.generator.ports import Cancelled
from services.generator.runtime.converted import ConvertedModel
from services.generator.runtime.networks import Prompt
from services.generator.runtime.outcomes import Outcome
from services.generator.runtime.rules import Rules
from services.generator.runtime.statistics import EngineStatistics
from services.generator.runtime.tasks import Judgement, Task
from services.generator.runtime.writing import SingleWriting

_log = logging.getLogger("ragmesh.generator.runtime")


@dataclass(eq=False, slots=True)
class _Read:
    """A prompt that was read as a whole."""

    prompt: Prompt
    computed: int
    reused: int = 0
    done: bool = True


class ConvertedLoop:
    """Runs requests in their order of arrival; a batch that runs takes nobody in.

    CTranslate2 stops a greedy answer at its next token when nobody waits any more; a beam search it lets run
    to its end. It does not sample: draws could not be repeated from a request's seed.

    Args:
        rows: most rows of a batch, beams counted, [1, inf).
        batch_tokens: most padded tokens of a batch, [1, inf).
    """

    def __init__(
        self, name: str, model: ConvertedModel, rules: Rules, *, rows: int, batch_tokens: int
    ) -> None:
        self._name = name
        self._model = model
        self._rules = rules
        self._rows = rows
        self._batch_tokens = batch_tokens
        self._changed = threading.Condition()
        self._waiting: deque[Task | Judgement] = deque()
        self._closed = False
        self._running: list[Task] = []
        self._finished = self._cancelled = self._failed = 0
        self._steps = self._step_rows = self._passes = self._written = self._computed = 0
        self._judged = self._judge_batches = self._late = 0
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)
        self._thread.start()

    def put(self, item: Task | Judgement) -> None:
        """Takes a request that has a prompt, or passages to judge; from any thread."""
        if isinstance(item, Task) and item.request.decoding.temperature > 0:
            self.end(item, InvalidField("decoding.temperature", f"must be 0: {self._name} does not sample"))
            return
        with self._changed:
            closed = self._closed
            if not closed:
                self._waiting.append(item)
                self._changed.notify()
        if closed:
            self._refuse(item, _stopped())

    def end(self, task: Task, outcome: Outcome) -> None:
        """Ends a request; from any thread."""
        with self._changed:
            if isinstance(outcome, Cancelled | DeadlineExceeded):
                self._cancelled += 1
            elif isinstance(outcome, MeshError):
                self._failed += 1
            else:
                self._finished += 1
        try:
            task.listener.on_end(outcome)
        except Exception:  # noqa: BLE001 - one listener's fault is not that of the others
            _log.warning("a listener failed", exc_info=True)

    def statistics(self, preparing: int) -> EngineStatistics:
        """What was done so far."""
        with self._changed:
            running = list(self._running)
            waiting = sum(isinstance(item, Task) for item in self._waiting)
        return EngineStatistics(
            waiting=preparing + waiting,
            active_requests=len(running),
            active_rows=sum(task.width for task in running),
            finished=self._finished,
            cancelled=self._cancelled,
            failed=self._failed,
            steps=self._steps,
            step_rows=self._step_rows,
            prefills=self._passes,
            written_tokens=self._written,
            computed_tokens=self._computed,
            most_steps_after_cancel=self._late,
            judged=self._judged,
            judge_batches=self._judge_batches,
        )

    def close(self) -> None:
        """Stops after the batch that runs, whose greedy answers end at their next token."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._closed or self._waiting):
                    self._changed.wait()
                if self._closed:
                    left = list(self._waiting)
                    self._waiting.clear()
                    break
                batch = self._take()
            judgements = [item for item in batch if isinstance(item, Judgement)]
            tasks = [item for item in batch if isinstance(item, Task)]
            for judgement in judgements:
                self._judge(judgement)
            if tasks:
                self._write(tasks)
        for item in left:
            self._refuse(item, _stopped())

    def _take(self) -> list[Task | Judgement]:
        """What runs next: the first who waits, and those behind that suit it."""
        first = self._waiting.popleft()
        if isinstance(first, Judgement):
            return [first]
        batch: list[Task | Judgement] = [first]
        rows, longest = first.width, _tokens(first)
        for item in list(self._waiting):
            if isinstance(item, Judgement) or not _suit(first, item):
                continue
            longest = max(longest, _tokens(item))
            rows += item.width
            if rows > self._rows or longest * rows > self._batch_tokens:
                break
            self._waiting.remove(item)
            batch.append(item)
        self._running = [item for item in batch if isinstance(item, Task)]
        return batch

    def _write(self, tasks: list[Task]) -> None:
        now = time.monotonic()
        there = []
        for task in tasks:
            if task.cancel.cancelled:
                self.end(task, _why(task))
                continue
            assert task.prompt is not None and task.transcript is not None  # noqa: S101, PT018 - made before
            task.taken_up = now
            task.reading = _Read(task.prompt, task.prompt.tokens)
            there.append(task)
        self._running = there
        if not there:
            return
        for task in there:
            task.batch_rows = sum(one.width for one in there)
        try:
            if there[0].width > 1:
                self._search(there)
            else:
                self._stream(there)
        except Exception as error:  # noqa: BLE001 - told to who asked
            told = to_mesh_error(error)
            for task in there:
                if not (task.writing and task.writing.done):
                    self.end(task, told)
        finally:
            self._passes += 1
            self._computed += sum(task.reading.computed for task in there if task.reading)
            self._running = []

    def _stream(self, tasks: Sequence[Task]) -> None:
        writings = [self._writing(task) for task in tasks]

        def on_token(row: int, token: int, log_probability: float) -> bool:
            task, writing = tasks[row], writings[row]
            over = self._closed or task.lost or writing.done
            if over:
                return True
            if task.cancel.cancelled:
                task.late_steps += 1
                self._late = max(self._late, task.late_steps)
                return True
            task.first = task.first or time.monotonic()
            self._steps += row == 0
            self._step_rows += 1
            self._written += 1
            try:
                writing.take(token, log_probability)
            except Exception:  # noqa: BLE001 - one listener's fault is not that of the others
                _log.warning("a listener failed", exc_info=True)
                task.lost = True
                return True
            if writing.done:
                self.end(task, task.answer())
            return writing.done

        for task, writing in zip(tasks, writings, strict=True):
            task.writing = writing
        most = max(task.request.decoding.max_new_tokens for task in tasks)
        self._model.write([_prompt(task) for task in tasks], beams=1, most_tokens=most, on_token=on_token)
        for task, writing in zip(tasks, writings, strict=True):
            if not writing.done:
                self.end(task, self._why_left(task))

    def _search(self, tasks: Sequence[Task]) -> None:
        decoding = tasks[0].request.decoding
        found = self._model.write(
            [_prompt(task) for task in tasks], beams=decoding.num_beams, most_tokens=decoding.max_new_tokens
        )
        for task, one in zip(tasks, found, strict=True):
            task.first = time.monotonic()
            if task.cancel.cancelled:
                self.end(task, _why(task))
                continue
            writing = self._writing(task)
            for token in one.ids:
                writing.take(token, 0.0)
            writing.log_probability = one.log_probability
            task.writing = writing
            self._written += len(one.ids)
            self.end(task, task.answer())

    def _writing(self, task: Task) -> SingleWriting:
        assert task.transcript is not None  # noqa: S101 - made before
        behind = _prompt(task).start or _prompt(task).rows[0]
        decoding, question = task.request.decoding, task.request.question
        return SingleWriting(
            decoding, question, self._rules, None, behind, task.transcript, task.listener.on_delta
        )

    def _why_left(self, task: Task) -> MeshError | Cancelled:
        """Why a greedy answer was left before its end."""
        return _stopped() if self._closed else _why(task)

    def _judge(self, judgement: Judgement) -> None:
        scores: dict[int, tuple[float, float]] = {}
        try:
            for chosen in by_length([one.tokens for one in judgement.prompts], self._batch_tokens):
                judgement.cancel.check()
                rows = self._model.first_log_probs(
                    [judgement.prompts[at] for at in chosen], [judgement.true, judgement.false]
                )
                scores |= {at: (row[0], row[1]) for at, row in zip(chosen, rows, strict=True)}
                self._judged += len(chosen)
                self._judge_batches += 1
        except Exception as error:  # noqa: BLE001 - told to who asked
            self._refuse(judgement, error if isinstance(error, Cancelled) else to_mesh_error(error))
            return
        if not judgement.result.cancelled():
            judgement.result.set_result([scores[at] for at in range(len(judgement.prompts))])

    def _refuse(self, item: Task | Judgement, error: MeshError | Cancelled) -> None:
        if isinstance(item, Task):
            self.end(item, error)
        elif not item.result.cancelled():
            item.result.set_exception(error)


def _suit(first: Task, other: Task) -> bool:
    """Whether both can be of one batch: greedy ones end each at its own length."""
    one, two = first.request.decoding, other.request.decoding
    return one.num_beams == two.num_beams and (one.num_beams == 1 or one.max_new_tokens == two.max_new_tokens)


def _prompt(task: Task) -> Prompt:
    assert task.prompt is not None  # noqa: S101 - made before
    return task.prompt


def _tokens(task: Task) -> int:
    return _prompt(task).tokens + task.request.decoding.max_new_tokens


def _why(task: Task) -> MeshError | Cancelled:
    """Why nobody waits any more."""
    try:
        task.cancel.check()
    except (MeshError, Cancelled) as error:
        return error
    return Cancelled()


def _stopped() -> MeshError:
    return Unavailable("STOPPED", "the model is being unloaded")
