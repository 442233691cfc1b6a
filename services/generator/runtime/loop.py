"""The decoding loop: one thread, one running batch, requests join and leave between steps."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import InvalidStateError
from dataclasses import dataclass

import grpc
import torch

from meshkit.errors import DeadlineExceeded, MeshError, Unavailable, to_mesh_error
from services.generator.ports import Cancelled
from services.generator.runtime.choosing import choose
from services.generator.runtime.layout import Layout
from services.generator.runtime.networks import Network, Reading
from services.generator.runtime.outcomes import Outcome
from services.generator.runtime.rules import Rules
from services.generator.runtime.statistics import EngineStatistics
from services.generator.runtime.tasks import Judgement, Task
from services.generator.runtime.writing import BeamWriting, SingleWriting

_log = logging.getLogger("ragmesh.generator.runtime")

_JUDGED_TOGETHER = 16
"""Most passages of one judging pass: a few rows of alike lengths, and scores that fit."""

_ALIKE_AMONG = 256
"""Passages to judge among which those are looked for that are as long as the oldest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the batch may hold.

    Attributes:
        rows: most rows, beams counted, [1, inf).
        bytes: most bytes of keys and values, [1, inf); a request that needs more runs alone.
        pass_tokens: most prompt tokens of a pass while nobody is writing.
        chunk_tokens: most prompt tokens between two steps, so that answers do not stall.
    """

    rows: int
    bytes: int
    pass_tokens: int
    chunk_tokens: int


class DecodingLoop:
    """Runs requests in their order of arrival, as many together as there is room for.

    Args:
        midway: whether rows may join a batch that is running; if not, those who wait start together.
    """

    def __init__(self, name: str, network: Network, rules: Rules, limits: Limits, *, midway: bool) -> None:
        self._network = network
        self._rules = rules
        self._limits = limits
        self._midway = midway
        self._changed = threading.Condition()
        self._arrivals: deque[Task | Judgement] = deque()
        self._closed = False
        self._waiting: deque[Task] = deque()
        self._reading: list[Task] = []
        self._running: dict[int, Task] = {}
        self._judging: list[Judgement] = []
        self._layout = Layout()
        self._rows = network.rows()
        self._finished = self._cancelled = self._failed = 0
        self._steps = self._step_rows = self._passes = 0
        self._written = self._computed = self._reused = 0
        self._late = self._judged = self._judge_batches = 0
        self._thread = threading.Thread(target=self._run, name=f"engine-{name}", daemon=True)
        self._thread.start()

    def put(self, item: Task | Judgement) -> None:
        """Takes a request that has a prompt, or passages to judge; from any thread."""
        with self._changed:
            closed = self._closed
            if not closed:
                self._arrivals.append(item)
                self._changed.notify()
        if closed:
            self._end_any(item, _stopped())

    def end(self, task: Task, outcome: Outcome) -> None:
        """Ends a request that never came to the batch; from any thread."""
        with self._changed:
            self._count(outcome)
        _tell(task, outcome)

    def statistics(self, preparing: int) -> EngineStatistics:
        """What was done so far; ``preparing``: requests that have no prompt yet."""
        cache_bytes, hits, misses = self._network.counts()
        return EngineStatistics(
            waiting=preparing + len(self._arrivals) + len(self._waiting),
            active_requests=len(self._reading) + len(self._running),
            active_rows=len(self._layout),
            finished=self._finished,
            cancelled=self._cancelled,
            failed=self._failed,
            steps=self._steps,
            step_rows=self._step_rows,
            prefills=self._passes,
            written_tokens=self._written,
            computed_tokens=self._computed,
            reused_tokens=self._reused,
            cache_bytes=cache_bytes,
            cache_hits=hits,
            cache_misses=misses,
            most_steps_after_cancel=self._late,
            judged=self._judged,
            judge_batches=self._judge_batches,
        )

    def close(self) -> None:
        """Stops between two steps; what is not done ends with UNAVAILABLE."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # The thread.

    def _run(self) -> None:
        with torch.inference_mode():
            while self._take_in():
                self._drop()
                self._admit()
                self._read()
                self._begin()
                self._judge()
                self._step()
        items: list[Task | Judgement] = [
            *self._running.values(),
            *self._reading,
            *self._waiting,
            *self._judging,
        ]
        for item in [*items, *self._arrivals]:
            self._end_any(item, _stopped())

    def _take_in(self) -> bool:
        with self._changed:
            while not (
                self._closed
                or self._arrivals
                or self._waiting
                or self._reading
                or self._running
                or self._judging
            ):
                self._changed.wait()
            while self._arrivals:
                item = self._arrivals.popleft()
                if isinstance(item, Task):
                    self._waiting.append(item)
                else:
                    self._judging.append(item)
            return not self._closed

    def _drop(self) -> None:
        """Lets go of everybody who does not wait any more."""
        for kept in (self._waiting, self._reading):
            for task in [one for one in kept if one.lost or one.cancel.cancelled]:
                kept.remove(task)
                self._end(task, _why(task))
        gone = [one for one in self._running.values() if one.lost or one.cancel.cancelled]
        if gone:
            self._leave(gone, {})
            for task in gone:
                self._end(task, _why(task))
        for judgement in [one for one in self._judging if one.cancel.cancelled]:
            self._judging.remove(judgement)
            self._end_judgement(judgement, _why(judgement))

    def _admit(self) -> None:
        """First come, first served: who does not fit is not overtaken."""
        while self._waiting and self._fits(self._waiting[0]):
            task = self._waiting.popleft()
            assert task.prompt is not None, "prompts are made before"  # noqa: S101
            task.taken_up = time.monotonic()
            task.reading = self._network.read(task.prompt)
            self._reading.append(task)

    def _fits(self, task: Task) -> bool:
        active = [*self._running.values(), *self._reading]
        if not active:
            return True
        together = [*active, task]
        rows = sum(one.width for one in together)
        if rows > self._limits.rows:
            return False
        cost = self._network.footprint
        own = max(self._own_tokens(one) for one in together) * rows
        longest: dict[int, list[int]] = {}
        for one in together:
            longest.setdefault(one.width, []).append(one.prompt.tokens if one.prompt else 0)
        source = sum(max(lengths) * len(lengths) for lengths in longest.values())
        return own * cost.own + source * cost.source <= self._limits.bytes

    def _own_tokens(self, task: Task) -> int:
        """Tokens a row of the request may have at its end."""
        prompt = task.prompt
        before = 0 if prompt is None else len(prompt.start) if prompt.start else prompt.tokens
        return before + task.request.decoding.max_new_tokens

    def _read(self) -> None:
        """One pass over prompts; a small one while somebody is writing."""
        tasks = [one for one in self._reading if one.reading is not None and not one.reading.done]
        if not tasks:
            return
        most = self._limits.chunk_tokens if self._running else self._limits.pass_tokens
        readings = [one.reading for one in tasks if one.reading is not None]

        def fail(at: int, error: MeshError) -> None:
            self._reading.remove(tasks[at])
            self._end(tasks[at], error)

        self._advance(readings, most, fail)

    def _advance(
        self, readings: Sequence[Reading], most: int, fail: Callable[[int, MeshError], None]
    ) -> None:
        before = sum(one.computed for one in readings)
        try:
            self._network.advance(readings, most)
        except Exception as error:  # noqa: BLE001 - told to who asked
            if len(readings) == 1:
                fail(0, _as_mesh_error(error))
                return
            # One of several is at fault, or they are too much together: each by itself.
            for at, reading in enumerate(readings):
                self._advance([reading], 1, lambda _, one, at=at: fail(at, one))  # type: ignore[misc]
        self._passes += sum(one.computed for one in readings) > before

    def _begin(self) -> None:
        """Lets those join whose prompts are read."""
        if not self._midway and (
            self._running or not all(one.reading and one.reading.done for one in self._reading)
        ):
            return
        ready = [one for one in self._reading if one.reading is not None and one.reading.done]
        if not ready:
            return
        for task in ready:
            self._reading.remove(task)
        self._join(ready)

    def _join(self, tasks: Sequence[Task]) -> None:
        try:
            begun = self._network.begin([one.reading for one in tasks if one.reading is not None])
        except Exception as error:  # noqa: BLE001 - told to who asked
            if len(tasks) == 1:
                self._end(tasks[0], _as_mesh_error(error))
                return
            for task in tasks:
                self._join([task])
            return
        known = []
        for task in tasks:
            task.writing = self._writing(task)
        try:
            for task, one in zip(tasks, begun, strict=True):
                self._rows.join(task.id, one, task.width)
                self._layout.add(task.id, task.width)
                self._running[task.id] = task
                if one.logits is not None:
                    known.append((task, one.logits))
        except Exception as error:  # noqa: BLE001 - told to who asked
            self._give_up({one.id: one for one in [*self._running.values(), *tasks]}.values(), error)
            return
        if known:
            logits = torch.stack([scores for task, scores in known for _ in range(task.width)])
            at = 0
            rows = {}
            for task, _ in known:
                rows[task.id] = range(at, at + task.width)
                at += task.width
            self._choose(logits, rows, [task for task, _ in known])

    def _writing(self, task: Task) -> SingleWriting | BeamWriting:
        prompt, transcript, decoding = task.prompt, task.transcript, task.request.decoding
        assert prompt is not None and transcript is not None, "prompts are made before"  # noqa: S101, PT018
        behind = prompt.start or prompt.rows[0]
        source = [token for row in prompt.rows for token in row] if prompt.start else ()
        processors = self._rules.processors(len(behind), decoding.max_new_tokens, task.width, source)

        def emit(text: str) -> None:
            if not task.lost:
                _notify(task, lambda: task.listener.on_delta(text))

        if decoding.num_beams > 1:
            return BeamWriting(decoding, self._rules, processors, behind, transcript, emit)
        stream = task.request.question
        return SingleWriting(decoding, stream, self._rules, processors, behind, transcript, emit)

    def _step(self) -> None:
        """One token for every row."""
        if not self._running:
            return
        tokens = [0] * len(self._layout)
        for owner, rows in self._layout.rows.items():
            writing = self._running[owner].writing
            for row, token in zip(rows, writing.tokens if writing else (), strict=True):
                tokens[row] = token
        tasks = list(self._running.values())
        for task in tasks:
            task.batch_rows = max(task.batch_rows, len(tokens))
        try:
            logits = self._rows.step(torch.tensor(tokens, device=self._network.device))
            self._steps += 1
            self._step_rows += len(tokens)
            self._choose(logits, self._layout.rows, tasks)
        except Exception as error:  # noqa: BLE001 - told to who asked
            self._give_up(tasks, error)

    def _choose(self, logits: torch.Tensor, rows: object, tasks: Sequence[Task]) -> None:
        writings = {one.id: one.writing for one in tasks if one.writing is not None}
        choose(logits, rows, writings, normalised=self._network.normalised)  # type: ignore[arg-type]
        now = time.monotonic()
        for task in tasks:
            task.first = task.first or now
            if task.cancel.cancelled:
                task.late_steps += 1
                self._late = max(self._late, task.late_steps)
        self._written += len(tasks)
        parents = {
            owner: one.parents for owner, one in writings.items() if one.parents is not None and not one.done
        }
        done = [one for one in tasks if one.writing is not None and one.writing.done]
        if parents or done:
            self._leave(done, parents)
        for task in done:
            self._end(task, task.answer())

    def _leave(self, tasks: Sequence[Task], parents: dict[int, list[int]]) -> None:
        left = {one.id: one.width for one in tasks}
        for owner in left:
            del self._running[owner]
        sources = self._layout.settle(parents, left)
        self._rows.settle(sources, self._layout.rows, left)

    def _give_up(self, tasks: Collection[Task], error: Exception) -> None:
        """A step failed: its requests end, and an empty batch goes on."""
        told = _as_mesh_error(error)
        self._running.clear()
        self._layout = Layout()
        self._rows = self._network.rows()
        for task in tasks:
            self._end(task, told)

    def _judge(self) -> None:
        """One pass over passages to judge, of whoever asked."""
        if not self._judging:
            return
        for judgement in self._judging:
            if not judgement.readings:
                judgement.readings = {
                    at: self._network.read(prompt) for at, prompt in enumerate(judgement.prompts)
                }
        items = [(judgement, at) for judgement in self._judging for at in judgement.readings]
        missing = _alike([(one, at) for one, at in items if not one.readings[at].done])
        failed: dict[int, MeshError] = {}

        def fail(place: int, error: MeshError) -> None:
            failed[id(missing[place][0])] = error

        if missing:
            most = self._limits.chunk_tokens if self._running else self._limits.pass_tokens
            self._advance([one.readings[at] for one, at in missing], most, fail)
        ready = [(one, at) for one, at in items if one.readings[at].done and id(one) not in failed]
        ready.sort(key=lambda item: item[0].prompts[item[1]].tokens)
        for begin in range(0, len(ready), _JUDGED_TOGETHER):
            self._judge_together(ready[begin : begin + _JUDGED_TOGETHER], failed)
        for judgement in list(self._judging):
            if id(judgement) in failed:
                self._judging.remove(judgement)
                self._end_judgement(judgement, failed[id(judgement)])
            elif len(judgement.scores) == len(judgement.prompts):
                self._judging.remove(judgement)
                scores = [judgement.scores[at] for at in range(len(judgement.prompts))]
                _settle(judgement, scores)

    def _judge_together(self, items: Sequence[tuple[Judgement, int]], failed: dict[int, MeshError]) -> None:
        try:
            logits = self._network.judge([one.readings[at] for one, at in items]).double()
        except Exception as error:  # noqa: BLE001 - told to who asked
            if len(items) == 1:
                failed[id(items[0][0])] = _as_mesh_error(error)
                return
            for item in items:
                self._judge_together([item], failed)
            return
        log_probs = logits if self._network.normalised else logits.log_softmax(-1)
        true = log_probs.gather(1, torch.tensor([[one.true] for one, _ in items], device=logits.device))
        false = log_probs.gather(1, torch.tensor([[one.false] for one, _ in items], device=logits.device))
        for (judgement, at), pair in zip(items, torch.cat([true, false], 1).tolist(), strict=True):
            judgement.scores[at] = (pair[0], pair[1])
            # What was read is let go of: a thousand passages' keys and values would not fit.
            reading = judgement.readings.pop(at)
            self._computed += reading.computed
            self._reused += reading.reused
        self._judged += len(items)
        self._judge_batches += 1

    # Ends.

    def _end(self, task: Task, outcome: Outcome) -> None:
        if task.reading is not None:
            self._computed += task.reading.computed
            self._reused += task.reading.reused
        # What was computed for it is let go of now, not when the caller forgets the request.
        task.reading = task.writing = None
        self._count(outcome)
        _tell(task, outcome)

    def _end_any(self, item: Task | Judgement, error: MeshError) -> None:
        if isinstance(item, Task):
            self._end(item, error)
        else:
            self._end_judgement(item, error)

    def _end_judgement(self, judgement: Judgement, error: MeshError | Cancelled) -> None:
        try:
            judgement.result.set_exception(error)
        except InvalidStateError:
            _log.debug("a judgement ended that nobody waits for")

    def _count(self, outcome: Outcome) -> None:
        if isinstance(outcome, Cancelled | DeadlineExceeded):
            self._cancelled += 1
        elif isinstance(outcome, MeshError):
            self._failed += 1
        else:
            self._finished += 1


def _alike(items: Sequence[tuple[Judgement, int]]) -> list[tuple[Judgement, int]]:
    """The oldest first, then what is about as long, of whoever asked: it pads little, and nobody starves."""
    if not items:
        return []
    near = items[:_ALIKE_AMONG]
    lengths = [judgement.prompts[at].tokens for judgement, at in near]
    order = sorted(range(len(near)), key=lambda place: abs(lengths[place] - lengths[0]))
    return [*(near[place] for place in order), *items[_ALIKE_AMONG:]]


def _settle(judgement: Judgement, scores: list[tuple[float, float]]) -> None:
    try:
        judgement.result.set_result(scores)
    except InvalidStateError:
        _log.debug("a judgement was made that nobody waits for")


def _tell(task: Task, outcome: Outcome) -> None:
    _notify(task, lambda: task.listener.on_end(outcome))


def _notify(task: Task, call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:  # noqa: BLE001 - one listener's fault is not that of the others
        if not task.lost:
            _log.warning("a listener failed", exc_info=True)
        task.lost = True


def _why(item: Task | Judgement) -> MeshError | Cancelled:
    """Why nobody waits any more."""
    try:
        item.cancel.check()
    except (MeshError, Cancelled) as error:
        return error
    return Cancelled()


def _as_mesh_error(error: Exception) -> MeshError:
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        _log.error("out of memory: %s", str(error).split("\n", 1)[0])
        return MeshError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "OUT_OF_MEMORY",
            "the model ran out of memory; ask for fewer passages, beams or tokens",
        )
    return to_mesh_error(error)


def _stopped() -> MeshError:
    return Unavailable("STOPPED", "the model is being unloaded")
