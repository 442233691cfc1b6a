"""Run the requests of a converted model in batches: those that wait together run together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from evenmesh.wire.errors import InvalidField, MeshError
from evenmesh_generator.ports import Cancelled
from evenmesh_generator.runtime.decoding.rules import Rules
from evenmesh_generator.runtime.decoding.sequences import SingleSequence
from evenmesh_generator.runtime.loops.converted_model import ConvertedModel, Found
from evenmesh_generator.runtime.loops.loop import Loop, answered, notify, stopped, why_cancelled
from evenmesh_generator.runtime.networks.protocol import Prompt
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.runtime.tasks import Judgement, Task
from evenmesh_kit.compute.lengths import by_length, rows_at_once
from evenmesh_kit.rpc.statuses import to_mesh_error


@dataclass(eq=False, slots=True)
class _Read:
    """A prompt that was read as a whole."""

    prompt: Prompt
    computed: int
    reused: int = 0
    done: bool = True


class ConvertedLoop(Loop):
    """Runs requests in batches, in the turns of their tenants; no request joins a running batch.

    CTranslate2 stops a greedy answer at its next token when nobody waits any more; a beam search it lets run
    to its end. It does not sample: draws could not be repeated from a request's seed.

    Args:
        rows: most rows of a batch, beams counted, [1, inf).
        batch_tokens: most padded tokens of a batch, [1, inf).
    """

    def __init__(
        self, name: str, model: ConvertedModel, rules: Rules, *, rows: int, batch_tokens: int
    ) -> None:
        super().__init__(name)
        self._name = name
        self._model = model
        self._rules = rules
        self._rows = rows
        self._batch_tokens = batch_tokens
        self._running: list[Task] = []
        self._thread.start()

    def put(self, item: Task | Judgement) -> None:
        """Accept a request that has a prompt, or passages to judge; from any thread."""
        if isinstance(item, Task) and item.request.decoding.temperature > 0:
            self.end(item, InvalidField("decoding.temperature", f"must be 0: {self._name} does not sample"))
            return
        super().put(item)

    def statistics(self, preparing: int) -> EngineStatistics:
        """Return the counts so far."""
        with self._changed:
            running = list(self._running)
            waiting = sum(isinstance(item, Task) for item in self._arrivals)
        return replace(
            self._counts,
            waiting=preparing + waiting,
            active_requests=len(running),
            active_rows=sum(task.width for task in running),
        )

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._closed or self._arrivals):
                    self._changed.wait()
                if self._closed:
                    left = list(self._arrivals)
                    self._arrivals.clear()
                    break
                batch = self._take()
            judgements = [item for item in batch if isinstance(item, Judgement)]
            tasks = [item for item in batch if isinstance(item, Task)]
            for judgement in judgements:
                self._judge(judgement)
            if tasks:
                self._write(tasks)
        for item in left:
            self._refuse(item, stopped())

    def _take(self) -> list[Task | Judgement]:
        """Return the next batch: the request whose turn it is, and others that suit it."""
        first = self._arrivals.popleft()
        if isinstance(first, Judgement):
            return [first]
        batch: list[Task | Judgement] = [first]
        rows, longest = first.width, _tokens(first)
        for item in list(self._arrivals):
            if isinstance(item, Judgement) or not _suit(first, item):
                continue
            longest = max(longest, _tokens(item))
            rows += item.width
            if rows > self._rows or longest * rows > self._batch_tokens:
                break
            self._arrivals.remove(item)
            batch.append(item)
        self._running = [item for item in batch if isinstance(item, Task)]
        return batch

    def _write(self, tasks: list[Task]) -> None:
        now = time.monotonic()
        there = []
        for task in tasks:
            if task.cancel.cancelled:
                self.end(task, why_cancelled(task))
                continue
            assert task.prompt is not None and task.transcript is not None  # noqa: S101, PT018 - made before
            task.started = now
            task.prefill = _Read(task.prompt, task.prompt.tokens)
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
        except Exception as error:  # noqa: BLE001 - the caller receives it
            mesh_error = to_mesh_error(error)
            for task in there:
                if not (task.sequence and task.sequence.done):
                    self.end(task, mesh_error)
        finally:
            self._counts.prefills += 1
            self._counts.computed_tokens += sum(task.prefill.computed for task in there if task.prefill)
            self._running = []

    def _stream(self, tasks: Sequence[Task]) -> None:
        sequences = [self._sequence(task) for task in tasks]

        def on_token(row: int, token: int, log_probability: float) -> bool:
            task, sequence = tasks[row], sequences[row]
            over = self._closed or task.lost or sequence.done
            if over:
                return True
            if task.cancel.cancelled:
                self._note_late_step(task)
                return True
            task.first = task.first or time.monotonic()
            self._counts.steps += row == 0
            self._counts.step_rows += 1
            self._counts.written_tokens += 1
            notify(task, lambda: sequence.take(token, log_probability))
            if task.lost:
                return True
            if sequence.done:
                self.end(task, answered(task))
            return sequence.done

        for task, sequence in zip(tasks, sequences, strict=True):
            task.sequence = sequence
        most = max(task.request.decoding.max_new_tokens for task in tasks)
        self._model.write([_prompt(task) for task in tasks], beams=1, most_tokens=most, on_token=on_token)
        for task, sequence in zip(tasks, sequences, strict=True):
            if not sequence.done:
                self.end(task, self._why_left(task))

    def _search(self, tasks: Sequence[Task]) -> None:
        decoding = tasks[0].request.decoding
        found = self._model.write(
            [_prompt(task) for task in tasks], beams=decoding.num_beams, most_tokens=decoding.max_new_tokens
        )
        for task, one in zip(tasks, found, strict=True):
            task.first = time.monotonic()
            if task.cancel.cancelled:
                self.end(task, why_cancelled(task))
                continue
            notify(task, partial(self._tell, task, one))
            self._counts.written_tokens += len(one.ids)
            self.end(task, self._why_left(task) if task.lost else answered(task))

    def _tell(self, task: Task, found: Found) -> None:
        """Send a listener the answer that a search found."""
        task.sequence = sequence = self._sequence(task)
        for token in found.ids:
            if not sequence.done:
                sequence.take(token, 0.0)
        sequence.log_probability = found.log_probability

    def _sequence(self, task: Task) -> SingleSequence:
        assert task.transcript is not None  # noqa: S101 - made before
        behind = _prompt(task).start or _prompt(task).rows[0]
        decoding, question = task.request.decoding, task.request.question
        return SingleSequence(
            decoding, question, self._rules, None, behind, task.transcript, task.listener.on_delta
        )

    def _why_left(self, task: Task) -> MeshError | Cancelled:
        """Return why an answer stopped before its end."""
        return stopped() if self._closed else why_cancelled(task)

    def _judge(self, judgement: Judgement) -> None:
        """Judge one batch of the passages; the rest waits for its next turn."""
        left = [at for at in range(len(judgement.prompts)) if at not in judgement.scores]
        try:
            judgement.cancel.check()
            lengths = [judgement.prompts[at].tokens for at in left]
            size = rows_at_once(self._model.device)
            batch = by_length(lengths, self._batch_tokens, size=size)[0]
            chosen = [left[place] for place in batch]
            rows = self._model.first_log_probs(
                [judgement.prompts[at] for at in chosen], [judgement.true, judgement.false]
            )
            judgement.scores |= {at: (row[0], row[1]) for at, row in zip(chosen, rows, strict=True)}
            self._counts.judged += len(chosen)
            self._counts.judge_batches += 1
        except Exception as error:  # noqa: BLE001 - the caller receives it
            self._refuse(judgement, error if isinstance(error, Cancelled) else to_mesh_error(error))
            return
        if len(judgement.scores) == len(judgement.prompts):
            self._settle(judgement)
        else:
            self.put(judgement)


def _suit(first: Task, other: Task) -> bool:
    """Return whether both can be of one batch: greedy ones end each at its own length."""
    one, two = first.request.decoding, other.request.decoding
    return one.num_beams == two.num_beams and (one.num_beams == 1 or one.max_new_tokens == two.max_new_tokens)


def _prompt(task: Task) -> Prompt:
    assert task.prompt is not None  # noqa: S101 - made before
    return task.prompt


def _tokens(task: Task) -> int:
    return _prompt(task).tokens + task.request.decoding.max_new_tokens
