"""The decoding loop: one thread, one running batch, requests join and leave between steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final, TypeVar

import grpc
import torch

from evenmesh.wire.errors import MeshError
from evenmesh_generator.ports import Cancelled
from evenmesh_generator.runtime.decoding.rules import Rules
from evenmesh_generator.runtime.decoding.selection import select_tokens
from evenmesh_generator.runtime.decoding.sequences import BeamSequences, SingleSequence
from evenmesh_generator.runtime.loops.layout import Layout
from evenmesh_generator.runtime.loops.loop import Loop, notify, stopped, why_cancelled
from evenmesh_generator.runtime.networks.protocol import Network, Prefill
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.runtime.tasks import Judgement, Outcome, Task
from evenmesh_kit.compute.tenant_turns import TenantTurns
from evenmesh_kit.rpc.statuses import to_mesh_error

Item = TypeVar("Item")

_log = logging.getLogger("evenmesh.generator.runtime")

_JUDGE_ROWS = 16
"""Most passages of one judging pass: a few rows of alike lengths, and scores that fit."""

_TENANT_SHARE: Final = 0.75
"""Largest part of the batch's rows that one tenant has, so that another one joins at the next step."""

_SIMILAR_AMONG = 256
"""How many waiting passages are searched for ones of the oldest's length."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the batch may hold.

    Attributes:
        rows: most rows, beams counted, [1, inf).
        bytes: most bytes of keys and values, [1, inf).
        pass_tokens: most prompt tokens of a pass while no answer is being generated.
        chunk_tokens: most prompt tokens between two steps, so that answers do not stall.
    """

    rows: int
    bytes: int
    pass_tokens: int
    chunk_tokens: int


class DecodingLoop(Loop):
    """Runs requests in the turns of their tenants, as many together as there is room for.

    Prompts are read between the steps of running answers, at once where none runs. Those of one tenant take
    at most as much time as the steps of other tenants' answers. A request that needs more rows or bytes
    than there are is refused.

    Args:
        continuous: whether rows may join a running batch; if not, waiting requests start together.
        clock: seconds from any moment, of which tenants get equal parts.
    """

    def __init__(
        self,
        name: str,
        network: Network[Any],
        rules: Rules,
        limits: Limits,
        *,
        continuous: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name)
        self._clock = clock
        self._network = network
        self._rules = rules
        self._limits = limits
        self._continuous = continuous
        self._waiting: TenantTurns[Task] = TenantTurns(lambda task: task.tenant)
        self._prefilling: list[Task] = []
        self._running: dict[int, Task] = {}
        self._judging: list[Judgement] = []
        self._read_last = ""
        self._judged_last = ""
        self._owed_s = 0.0
        """Time that passes over prompts have taken from other tenants' answers. Seconds."""
        self._layout = Layout()
        self._rows = network.rows()
        self._thread.start()

    def statistics(self, preparing: int) -> EngineStatistics:
        """Return the counts so far; ``preparing``: requests that have no prompt yet."""
        cache_bytes, hits, misses = self._network.counts()
        return replace(
            self._counts,
            waiting=preparing + len(self._arrivals) + len(self._waiting),
            active_requests=len(self._prefilling) + len(self._running),
            active_rows=len(self._layout),
            cache_bytes=cache_bytes,
            cache_hits=hits,
            cache_misses=misses,
        )

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
            *self._prefilling,
            *self._waiting,
            *self._judging,
        ]
        for item in [*items, *self._arrivals]:
            self._refuse(item, stopped())

    def _take_in(self) -> bool:
        with self._changed:
            while not (
                self._closed
                or self._arrivals
                or self._waiting
                or self._prefilling
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
        """Drop requests that nobody waits for."""
        waiting: tuple[TenantTurns[Task] | list[Task], ...] = (self._waiting, self._prefilling)
        for kept in waiting:
            for task in [one for one in kept if one.lost or one.cancel.cancelled]:
                kept.remove(task)
                self._end(task, why_cancelled(task))
        gone = [one for one in self._running.values() if one.lost or one.cancel.cancelled]
        if gone:
            self._leave(gone, {})
            for task in gone:
                self._end(task, why_cancelled(task))
        for judgement in [one for one in self._judging if one.cancel.cancelled]:
            self._judging.remove(judgement)
            self._refuse(judgement, why_cancelled(judgement))

    def _admit(self) -> None:
        """Admit requests in turns; one that does not fit is not overtaken, but for its tenant's share."""
        while (task := self._waiting.first(self._within_share)) is not None:
            if (error := self._too_large(task)) is not None:
                self._waiting.remove(task)
                self._end(task, error)
                continue
            if not self._fits(task):
                return
            self._waiting.take(task)
            assert task.prompt is not None, "prompts are made before"  # noqa: S101
            task.started = time.monotonic()
            task.prefill = self._network.prefill(task.prompt)
            self._prefilling.append(task)

    def _within_share(self, task: Task) -> bool:
        """Return whether a request leaves room for other tenants, or is the only one of its tenant."""
        active = [*self._running.values(), *self._prefilling]
        rows = sum(one.width for one in active if one.tenant == task.tenant)
        return not (task.tenant and rows) or rows + task.width <= self._limits.rows * _TENANT_SHARE

    def _too_large(self, task: Task) -> MeshError | None:
        """Return the error of a request that would not even fit alone."""
        cost, limits = self._network.footprint, self._limits
        tokens = task.prompt.tokens if task.prompt else 0
        size = self._own_tokens(task) * task.width * cost.own + tokens * cost.source
        if task.width <= limits.rows and size <= limits.bytes:
            return None
        return MeshError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "OVER_CAPACITY",
            f"the answer takes {task.width} rows and {size} bytes of the model's batch; {limits.rows} rows "
            f"and {limits.bytes} bytes fit: ask for fewer passages, beams or tokens",
        )

    def _fits(self, task: Task) -> bool:
        together = [*self._running.values(), *self._prefilling, task]
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
        """Return the tokens a row of the request may have at its end."""
        prompt = task.prompt
        before = 0 if prompt is None else len(prompt.start) if prompt.start else prompt.tokens
        return before + task.request.decoding.max_new_tokens

    def _read(self) -> None:
        """Compute one pass over prompts, of tenants in turn; a small one while answers are being written."""
        unread = [one for one in self._prefilling if one.prefill is not None and not one.prefill.done]
        allowed = [one for one in unread if self._may_read(one.tenant)]
        tasks = _in_turns(allowed, self._read_last, lambda task: task.tenant)
        if not tasks:
            return
        self._read_last = tasks[0].tenant
        prefills = [one.prefill for one in tasks if one.prefill is not None]

        def fail(at: int, error: MeshError) -> None:
            self._prefilling.remove(tasks[at])
            self._end(tasks[at], error)

        self._pass_over(prefills, {one.tenant for one in tasks}, fail)

    def _may_read(self, tenant: str) -> bool:
        """Return whether a prompt of the tenant may be read before the next step.

        Reading takes as long as many steps do. So other tenants' answers get as much time as it has taken.
        """
        return self._owed_s <= 0 or not self._takes_from_others({tenant})

    def _takes_from_others(self, tenants: Collection[str]) -> bool:
        """Return whether an answer that is being written waits for work of other tenants than its own."""
        return any(tenant != one.tenant for one in self._running.values() for tenant in tenants)

    def _pass_over(
        self, prefills: Sequence[Prefill], tenants: Collection[str], fail: Callable[[int, MeshError], None]
    ) -> None:
        most = self._limits.chunk_tokens if self._running else self._limits.pass_tokens
        begun = self._clock()
        self._advance(prefills, most, fail)
        if self._takes_from_others(tenants):
            self._owed_s += self._clock() - begun

    def _advance(
        self, prefills: Sequence[Prefill], most: int, fail: Callable[[int, MeshError], None]
    ) -> None:
        before = sum(one.computed for one in prefills)
        try:
            self._network.advance(prefills, most)
        except Exception as error:  # noqa: BLE001 - the caller receives it
            if len(prefills) == 1:
                fail(0, _as_mesh_error(error))
                return
            # One of several is at fault, or they are too much together: each by itself.
            for at, prefill in enumerate(prefills):
                self._advance([prefill], 1, lambda _, one, at=at: fail(at, one))  # type: ignore[misc]
        self._counts.prefills += sum(one.computed for one in prefills) > before

    def _begin(self) -> None:
        """Add the requests whose prompts are read to the batch."""
        if not self._continuous and (
            self._running or not all(one.prefill and one.prefill.done for one in self._prefilling)
        ):
            return
        ready = [one for one in self._prefilling if one.prefill is not None and one.prefill.done]
        if not ready:
            return
        for task in ready:
            self._prefilling.remove(task)
        self._join(ready)

    def _join(self, tasks: Sequence[Task]) -> None:
        try:
            started = self._network.begin([one.prefill for one in tasks if one.prefill is not None])
        except Exception as error:  # noqa: BLE001 - the caller receives it
            if len(tasks) == 1:
                self._end(tasks[0], _as_mesh_error(error))
                return
            for task in tasks:
                self._join([task])
            return
        known = []
        for task in tasks:
            task.sequence = self._sequence(task)
        try:
            for task, one in zip(tasks, started, strict=True):
                self._rows.join(task.id, one, task.width)
                self._layout.add(task.id, task.width)
                self._running[task.id] = task
                if one.logits is not None:
                    known.append((task, one.logits))
        except Exception as error:  # noqa: BLE001 - the caller receives it
            self._give_up({one.id: one for one in [*self._running.values(), *tasks]}.values(), error)
            return
        if known:
            logits = torch.stack([scores for task, scores in known for _ in range(task.width)])
            at = 0
            rows = {}
            for task, _ in known:
                rows[task.id] = range(at, at + task.width)
                at += task.width
            self._select(logits, rows, [task for task, _ in known])

    def _sequence(self, task: Task) -> SingleSequence | BeamSequences:
        prompt, transcript, decoding = task.prompt, task.transcript, task.request.decoding
        assert prompt is not None and transcript is not None, "prompts are made before"  # noqa: S101, PT018
        behind = prompt.start or prompt.rows[0]
        source = [token for row in prompt.rows for token in row] if prompt.start else ()
        processors = self._rules.processors(len(behind), decoding.max_new_tokens, task.width, source)

        def emit(text: str) -> None:
            if not task.lost:
                notify(task, lambda: task.listener.on_delta(text))

        if decoding.num_beams > 1:
            return BeamSequences(decoding, self._rules, processors, behind, transcript, emit)
        stream = task.request.question
        return SingleSequence(decoding, stream, self._rules, processors, behind, transcript, emit)

    def _step(self) -> None:
        """Compute one token for every row."""
        if not self._running:
            self._owed_s = 0.0
            return
        begun = self._clock()
        tokens = [0] * len(self._layout)
        for owner, rows in self._layout.rows.items():
            sequence = self._running[owner].sequence
            for row, token in zip(rows, sequence.tokens if sequence else (), strict=True):
                tokens[row] = token
        tasks = list(self._running.values())
        for task in tasks:
            task.batch_rows = max(task.batch_rows, len(tokens))
        try:
            logits = self._rows.step(torch.tensor(tokens, device=self._network.device))
            self._counts.steps += 1
            self._counts.step_rows += len(tokens)
            self._select(logits, self._layout.rows, tasks)
        except Exception as error:  # noqa: BLE001 - the caller receives it
            self._give_up(tasks, error)
        self._owed_s = max(0.0, self._owed_s - (self._clock() - begun))

    def _select(self, logits: torch.Tensor, rows: Mapping[int, Sequence[int]], tasks: Sequence[Task]) -> None:
        sequences = {one.id: one.sequence for one in tasks if one.sequence is not None}
        select_tokens(logits, rows, sequences, normalised=self._network.normalised)
        now = time.monotonic()
        for task in tasks:
            task.first = task.first or now
            if task.cancel.cancelled:
                self._note_late_step(task)
        self._counts.written_tokens += len(tasks)
        parents = {
            owner: one.parents for owner, one in sequences.items() if one.parents is not None and not one.done
        }
        done = [one for one in tasks if one.sequence is not None and one.sequence.done]
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
        """End the requests of a failed step, and go on with an empty batch."""
        mesh_error = _as_mesh_error(error)
        self._running.clear()
        self._layout = Layout()
        self._rows = self._network.rows()
        for task in tasks:
            self._end(task, mesh_error)

    def _judge(self) -> None:
        """Compute one pass over passages to judge, of any request."""
        if not self._judging:
            return
        for judgement in self._judging:
            if not judgement.prefills:
                judgement.prefills = {
                    at: self._network.prefill(prompt) for at, prompt in enumerate(judgement.prompts)
                }
        waiting = [(one, at) for one in self._judging if self._may_read(one.tenant) for at in one.prefills]
        items = _in_turns(waiting, self._judged_last, lambda item: item[0].tenant)
        missing = _by_similar_length([(one, at) for one, at in items if not one.prefills[at].done])
        failed: dict[int, MeshError] = {}

        def fail(place: int, error: MeshError) -> None:
            failed[id(missing[place][0])] = error

        if missing:
            self._judged_last = missing[0][0].tenant
            prefills = [one.prefills[at] for one, at in missing]
            self._pass_over(prefills, {one.tenant for one, _ in missing}, fail)
        ready = [(one, at) for one, at in items if one.prefills[at].done and id(one) not in failed]
        ready.sort(key=lambda item: item[0].prompts[item[1]].tokens)
        for begin in range(0, len(ready), _JUDGE_ROWS):
            self._judge_together(ready[begin : begin + _JUDGE_ROWS], failed)
        for judgement in list(self._judging):
            if id(judgement) in failed:
                self._judging.remove(judgement)
                self._refuse(judgement, failed[id(judgement)])
            elif len(judgement.scores) == len(judgement.prompts):
                self._judging.remove(judgement)
                self._settle(judgement)

    def _judge_together(self, items: Sequence[tuple[Judgement, int]], failed: dict[int, MeshError]) -> None:
        try:
            logits = self._network.judge([one.prefills[at] for one, at in items]).double()
        except Exception as error:  # noqa: BLE001 - the caller receives it
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
            # Free what was read: a thousand passages' keys and values would not fit.
            prefill = judgement.prefills.pop(at)
            self._counts.computed_tokens += prefill.computed
            self._counts.reused_tokens += prefill.reused
        self._counts.judged += len(items)
        self._counts.judge_batches += 1

    def _end(self, task: Task, outcome: Outcome) -> None:
        if task.prefill is not None:
            self._counts.computed_tokens += task.prefill.computed
            self._counts.reused_tokens += task.prefill.reused
        # Free what was computed now, not when the caller forgets the request.
        task.prefill = task.sequence = None
        self.end(task, outcome)

    def _refuse(self, item: Task | Judgement, error: MeshError | Cancelled) -> None:
        if isinstance(item, Task):
            self._end(item, error)
        else:
            super()._refuse(item, error)


def _in_turns(items: Iterable[Item], last: str, tenant_of: Callable[[Item], str]) -> list[Item]:
    """Return one item of each tenant in turn, beginning with the tenant after ``last``."""
    mine: dict[str, list[Item]] = {}
    for item in items:
        mine.setdefault(tenant_of(item), []).append(item)
    names = sorted(mine, key=lambda name: (name <= last, name))
    return [item for one in zip_longest(*(mine[name] for name in names)) for item in one if item is not None]


def _by_similar_length(items: Sequence[tuple[Judgement, int]]) -> list[tuple[Judgement, int]]:
    """Return the oldest first, then those of similar length: this pads little, and none starves."""
    if not items:
        return []
    near = items[:_SIMILAR_AMONG]
    lengths = [judgement.prompts[at].tokens for judgement, at in near]
    order = sorted(range(len(near)), key=lambda place: abs(lengths[place] - lengths[0]))
    return [*(near[place] for place in order), *items[_SIMILAR_AMONG:]]


def _as_mesh_error(error: Exception) -> MeshError:
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        _log.error("out of memory: %s", str(error).split("\n", 1)[0])
        return MeshError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "OUT_OF_MEMORY",
            "the model ran out of memory; ask for fewer passages, beams or tokens",
        )
    return to_mesh_error(error)
