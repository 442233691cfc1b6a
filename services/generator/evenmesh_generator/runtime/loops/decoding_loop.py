"""The decoding loop: one thread, running batches, requests join and leave between steps."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import zip_longest
from typing import Any, Final, NamedTuple, TypeVar

import grpc
import torch

from evenmesh.wire.errors import MeshError
from evenmesh_generator.ports import Cancelled
from evenmesh_generator.runtime.decoding.rules import Rules
from evenmesh_generator.runtime.decoding.selection import select_tokens
from evenmesh_generator.runtime.decoding.sequences import BeamSequences, SingleSequence
from evenmesh_generator.runtime.loops.layout import Layout
from evenmesh_generator.runtime.loops.loop import Loop, answered, notify, stopped, why_cancelled
from evenmesh_generator.runtime.loops.side_by_side import SideBySide
from evenmesh_generator.runtime.networks.protocol import Demand, Joining, Network, Prefill, ReadPrompt, Rows
from evenmesh_generator.runtime.statistics import EngineStatistics
from evenmesh_generator.runtime.tasks import Judgement, Outcome, Task, no_numbers
from evenmesh_kit.compute.lengths import CPU_ROWS, by_length
from evenmesh_kit.compute.placement import upload
from evenmesh_kit.compute.tenant_time import RecentTenants, TenantTime
from evenmesh_kit.compute.tenant_turns import TenantTurns
from evenmesh_kit.rpc.statuses import to_mesh_error

Item = TypeVar("Item", Task, "_Passage")

_log = logging.getLogger("evenmesh.generator.runtime")

_TENANT_SHARE: Final = 0.75
"""Largest part of all rows and bytes that one tenant has, so that another one joins at the next step."""

_CREDIT_S: Final = 1.0
"""Most time by which a tenant that asks for little goes before others: several of its requests. Seconds."""

_RECENT_S: Final = 60.0
"""How long after a tenant has asked the others' pieces of work stay small, for it may ask again. Seconds."""

_SIMILAR_AMONG = 256
"""How many waiting passages are searched for ones of the oldest's length."""

_PART_ROWS: Final = 16
"""Rows that are worth a core of their own: weights are read once for all, and 16 rows of the bundled model
take 1.8 times as long as 4 (2026-11-30, two cores with AMX)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the batch may hold.

    Attributes:
        rows: most rows, beams counted, [1, inf).
        bytes: most bytes of keys and values: the batches' buffers, one layer's more while they are replaced,
            and what was read for requests that have not joined, [1, inf).
        pass_tokens: most prompt tokens of a pass while no answer is being generated.
        chunk_tokens: most prompt tokens between two steps, so that answers do not stall.
        judge_rows: most passages that are judged together; their scores of the vocabulary exist at once.
        small: the limits of a tenant while others ask that have had less: each has passes and batches of its
            own, as a step of more rows takes longer where a processor computes. None where tenants share
            passes and batches, as on a GPU, where more rows take hardly any longer.
        parts: most parts of a batch, whose steps are computed at the same time, each by a thread, [1, inf);
            1 unless the network's rows may be computed by several threads.
    """

    rows: int
    bytes: int
    pass_tokens: int
    chunk_tokens: int
    judge_rows: int = CPU_ROWS
    small: SmallPieces | None = None
    parts: int = 1


@dataclass(frozen=True, slots=True)
class SmallPieces:
    """The largest pieces of work of a tenant that others may have to wait for.

    Attributes:
        pass_tokens: most prompt tokens of a pass.
        rows: most rows of its batch, if it has more than one answer in it.
    """

    pass_tokens: int
    rows: int


class _Piece(Enum):
    """The kinds of work; a tenant gets one piece of each in turn."""

    READ = 0
    JUDGE = 1
    STEP = 2


class _Place(NamedTuple):
    """Where a request runs: the name of a batch, and which part of it."""

    batch: str
    part: int


@dataclass(slots=True)
class _Part:
    """Answers that are written together, by one thread."""

    rows: Rows
    layout: Layout = field(default_factory=Layout)
    running: dict[int, Task] = field(default_factory=dict)

    def sequences(self) -> dict[int, SingleSequence | BeamSequences]:
        """Return the state of every answer."""
        return {one.id: one.sequence for one in self.running.values() if one.sequence is not None}

    def newest(self) -> list[int]:
        """Return the newest token of every row."""
        tokens = [0] * len(self.layout)
        sequences = self.sequences()
        for owner, rows in self.layout.rows.items():
            for row, token in zip(rows, sequences[owner].tokens, strict=True):
                tokens[row] = token
        return tokens


@dataclass(frozen=True, slots=True)
class _Passage:
    """A passage to judge: its place among those of its call."""

    judgement: Judgement
    at: int

    @property
    def tenant(self) -> str:
        """Return the tenant of the call."""
        return self.judgement.tenant

    @property
    def prefill(self) -> Prefill:
        """Return its prompt, being read."""
        return self.judgement.prefills[self.at]


class DecodingLoop(Loop):
    """Runs requests in the turns of their tenants, as many together as there is room for.

    The work is done in pieces: a pass over prompts, a pass over passages to judge, a step of running answers.
    The tenant that has had least time gets the next piece. A request that needs more rows or bytes than there
    are is refused.

    Args:
        continuous: whether rows may join a running batch; if not, waiting requests start together.
        threads: see :class:`Loop`.
        clock: seconds from any moment; tenants get equal parts of them.
    """

    def __init__(
        self,
        name: str,
        network: Network[Any],
        rules: Rules,
        limits: Limits,
        *,
        continuous: bool,
        threads: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, threads=threads)
        self._clock = clock
        self._network = network
        self._rules = rules
        self._limits = limits
        self._continuous = continuous
        self._waiting: TenantTurns[Task] = TenantTurns(lambda task: task.tenant)
        self._prefilling: list[Task] = []
        self._parts: dict[_Place, _Part] = {}
        self._side_by_side = SideBySide(limits.parts, f"steps-{name}", threads=self._threads)
        self._empty = network.rows()
        """A batch without rows: what requests would take by themselves."""
        self._judging: list[Judgement] = []
        self._time = TenantTime(_CREDIT_S)
        self._recent = RecentTenants(_RECENT_S, clock)
        self._last: dict[str, _Piece] = {}
        """The last piece of each tenant that has something to do."""
        self._thread.start()

    def statistics(self, preparing: int) -> EngineStatistics:
        """Return the counts so far; ``preparing``: requests that have no prompt yet."""
        cache_bytes, hits, misses = self._network.counts()
        parts = tuple(self._parts.values())
        return replace(
            self._counts,
            waiting=preparing + len(self._arrivals) + len(self._waiting),
            active_requests=len(self._prefilling) + sum(len(one.running) for one in parts),
            active_rows=sum(len(one.layout) for one in parts),
            cache_bytes=cache_bytes,
            cache_hits=hits,
            cache_misses=misses,
        )

    def _run(self) -> None:
        with self._side_by_side, torch.inference_mode():
            while self._take_in():
                try:
                    self._drop()
                    self._admit()
                    self._begin()
                    self._work()
                except Exception as error:  # noqa: BLE001 - the callers receive it
                    # Nobody would answer any more if this thread ended, and nobody would notice.
                    _log.exception("the loop of a model failed: all its requests end")
                    self._abandon(_as_mesh_error(error))
        self._abandon(stopped())
        for item in self._arrivals:
            self._refuse(item, stopped())

    def _abandon(self, error: MeshError) -> None:
        """End all requests that were taken in."""
        items: list[Task | Judgement] = [*self._running(), *self._prefilling, *self._waiting, *self._judging]
        for kept in (self._parts, self._prefilling, self._judging):
            kept.clear()
        for task in list(self._waiting):
            self._waiting.remove(task)
        for item in items:
            self._refuse(item, error)

    def _take_in(self) -> bool:
        with self._changed:
            while not (
                self._closed
                or self._arrivals
                or self._waiting
                or self._prefilling
                or self._parts
                or self._judging
            ):
                self._changed.wait()
            while self._arrivals:
                item = self._arrivals.popleft()
                self._recent.note(item.tenant)
                if isinstance(item, Task):
                    self._waiting.append(item)
                else:
                    self._judging.append(item)
            return not self._closed

    def _drop(self) -> None:
        """Drop requests whose callers have left."""
        waiting: tuple[TenantTurns[Task] | list[Task], ...] = (self._waiting, self._prefilling)
        for kept in waiting:
            for task in [one for one in kept if one.lost or one.cancel.cancelled]:
                kept.remove(task)
                self._end(task, why_cancelled(task))
        for place, part in list(self._parts.items()):
            gone = [one for one in part.running.values() if one.lost or one.cancel.cancelled]
            if gone:
                self._remove(place, gone, why_cancelled)
        for judgement in [one for one in self._judging if one.cancel.cancelled]:
            self._judging.remove(judgement)
            self._refuse(judgement, why_cancelled(judgement))

    def _admit(self) -> None:
        """Admit requests in turns; one that does not fit is not overtaken, but for its tenant's share."""
        while (task := self._waiting.first(self._within_share)) is not None:
            if (too_large := self._too_large(task)) is not None:
                self._waiting.remove(task)
                self._end(task, too_large)
                continue
            task.part = self._emptiest_part(task)
            if not self._fits(task):
                return
            self._waiting.take(task)
            assert task.prompt is not None, "prompts are made before"  # noqa: S101
            task.started = time.monotonic()
            try:
                task.prefill = self._network.prefill(task.prompt)
            except Exception as error:  # noqa: BLE001 - the caller receives it
                self._end(task, _as_mesh_error(error))
                continue
            self._prefilling.append(task)

    def _running(self) -> list[Task]:
        return [task for part in self._parts.values() for task in part.running.values()]

    def _emptiest_part(self, task: Task) -> int:
        """Return the part of its batch that a request joins: the first that has few rows, or the smallest."""
        rows = [0] * self._limits.parts
        for one in [*self._running(), *self._prefilling]:
            if self._place(one).batch == self._place(task).batch:
                rows[one.part] += one.width
        few = (part for part, count in enumerate(rows) if count < _PART_ROWS)
        return next(few, rows.index(min(rows)))

    def _within_share(self, task: Task) -> bool:
        """Return whether a request leaves room for other tenants, or is the only one of its tenant."""
        if not task.tenant:
            return True
        mine = [one for one in [*self._running(), *self._prefilling] if one.tenant == task.tenant]
        rows = self._limits.rows * _TENANT_SHARE
        if (small := self._small(task.tenant)) is not None:
            rows = min(rows, small.rows)
        if not mine:
            return True
        together = [*mine, task]
        if sum(one.width for one in together) > rows:
            return False
        size = self._empty.planned([self._demand(one) for one in together])
        size += sum(self._unjoined(one) for one in together if one.sequence is None)
        return size <= self._limits.bytes * _TENANT_SHARE

    def _small(self, tenant: str) -> SmallPieces | None:
        """Return the limits of a tenant's pieces; None if nobody may wait for them.

        Who has had less than others need not care for them: its pieces are as large as is fastest.
        """
        if self._time.in_credit(tenant) or not self._recent.others(tenant):
            return None
        return self._limits.small

    def _too_large(self, task: Task) -> MeshError | None:
        """Return the error of a request that would not even fit alone."""
        limits = self._limits
        size = self._empty.planned([self._demand(task)]) + self._unjoined(task)
        if task.width <= limits.rows and size <= limits.bytes:
            return None
        return MeshError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "OVER_CAPACITY",
            f"the answer takes {task.width} rows and {size} bytes of the model's batch; {limits.rows} rows "
            f"and {limits.bytes} bytes fit: ask for fewer passages, beams or tokens",
        )

    def _fits(self, task: Task) -> bool:
        """Return whether a request fits beside those that run and those whose prompts are read.

        Buffers only shrink when a request joins, so a part counts as what it has or will have, whichever is
        more.
        """
        together = [*self._running(), *self._prefilling, task]
        if sum(one.width for one in together) > self._limits.rows:
            return False
        joining: dict[_Place, list[Demand]] = {place: [] for place in self._parts}
        size = 0
        for one in [*self._prefilling, task]:
            joining.setdefault(self._place(one), []).append(self._demand(one))
            size += self._unjoined(one)
        for place, demands in joining.items():
            rows = self._parts[place].rows if place in self._parts else self._empty
            size += max(rows.bytes, rows.planned(demands))
        return size <= self._limits.bytes

    def _demand(self, task: Task) -> Demand:
        """Return what a request needs of a batch."""
        return Demand(task.width, self._own_tokens(task), task.prompt.tokens if task.prompt else 0)

    def _unjoined(self, task: Task) -> int:
        """Return the bytes of what is read for a request until it joins."""
        return self._network.footprint.read * (task.prompt.tokens if task.prompt else 0)

    def _own_tokens(self, task: Task) -> int:
        """Return the tokens a row of the request may have at its end."""
        prompt = task.prompt
        before = 0 if prompt is None else len(prompt.start) if prompt.start else prompt.tokens
        return before + task.request.decoding.max_new_tokens

    def _work(self) -> None:
        """Do one piece of work of the tenant that has had least time."""
        todo: dict[str, set[_Piece]] = {}
        for task in self._prefilling:
            if task.prefill is not None and not task.prefill.done:
                todo.setdefault(task.tenant, set()).add(_Piece.READ)
        for judgement in self._judging:
            todo.setdefault(judgement.tenant, set()).add(_Piece.JUDGE)
        for task in self._running():
            todo.setdefault(task.tenant, set()).add(_Piece.STEP)
        self._last = {tenant: one for tenant, one in self._last.items() if tenant in todo}
        if not todo:
            return
        tenant = self._time.next(todo)
        after = self._last[tenant].value + 1 if tenant in self._last else 0
        piece = min(todo[tenant], key=lambda one: (one.value - after) % len(_Piece))
        self._last[tenant] = piece
        begun = self._clock()
        parts = {_Piece.READ: self._read, _Piece.JUDGE: self._judge, _Piece.STEP: self._step}[piece](tenant)
        took = self._clock() - begun
        whole = sum(parts.values())
        for name, part in parts.items() if whole else [(tenant, 1)]:
            self._time.charge(name, took * part / max(1, whole))

    def _batch_of(self, tenant: str) -> str:
        """Return the name of the batch that a tenant's answers are in."""
        return tenant if self._limits.small is not None else ""

    def _place(self, task: Task) -> _Place:
        """Return where a request runs, or will."""
        return _Place(self._batch_of(task.tenant), task.part)

    def _in_turns(self, items: Sequence[Item], tenant: str) -> list[Item]:
        """Return a tenant's items, or where tenants share batches one of each in turn, beginning with it."""
        mine: dict[str, list[Item]] = {tenant: []}
        for item in items:
            mine.setdefault(item.tenant, []).append(item)
        if self._limits.small is not None:
            return mine[tenant]
        return [item for one in zip_longest(*mine.values()) for item in one if item is not None]

    def _read(self, tenant: str) -> dict[str, int]:
        """Compute one pass over prompts, those of a tenant first; return the tokens of each tenant."""
        unread = [one for one in self._prefilling if one.prefill is not None and not one.prefill.done]
        tasks = self._in_turns(unread, tenant)

        def fail(at: int, error: MeshError) -> None:
            self._prefilling.remove(tasks[at])
            self._end(tasks[at], error)

        prefills = [one.prefill for one in tasks if one.prefill is not None]
        return self._advance(prefills, [one.tenant for one in tasks], fail)

    def _advance(
        self, prefills: Sequence[Prefill], tenants: Sequence[str], fail: Callable[[int, MeshError], None]
    ) -> dict[str, int]:
        """Compute one pass over prompts of these tenants; return the tokens of each tenant."""
        before = [one.computed for one in prefills]
        most = self._limits.chunk_tokens if self._parts else self._limits.pass_tokens
        if (small := self._small(tenants[0])) is not None:
            most = min(most, small.pass_tokens)
        self._pass_over(prefills, most, fail)
        computed: dict[str, int] = {}
        for prefill, tenant, had in zip(prefills, tenants, before, strict=True):
            computed[tenant] = computed.get(tenant, 0) + prefill.computed - had
        return computed

    def _pass_over(
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
                self._pass_over([prefill], 1, lambda _, one, at=at: fail(at, one))  # type: ignore[misc]
        self._counts.prefills += sum(one.computed for one in prefills) > before

    def _begin(self) -> None:
        """Add the requests whose prompts are read to their batches."""
        ready: dict[_Place, list[Task]] = {}
        unread: set[_Place] = set()
        for task in self._prefilling:
            place = self._place(task)
            if task.prefill is not None and task.prefill.done:
                ready.setdefault(place, []).append(task)
            else:
                unread.add(place)
        for place, tasks in ready.items():
            if not self._continuous and (place in self._parts or place in unread):
                continue
            for task in tasks:
                self._prefilling.remove(task)
            self._join(place, tasks)

    def _join(self, place: _Place, tasks: Sequence[Task]) -> None:
        """Add requests to their part of a batch; one that cannot join ends, and no other one."""
        part = self._parts.get(place) or _Part(self._network.rows())
        try:
            started = self._network.begin([one.prefill for one in tasks if one.prefill is not None])
            pairs = list(zip(tasks, started, strict=True))
            known = [(task, one.logits) for task, one in pairs if one.logits is not None]
            logits = [scores for task, scores in known for _ in range(task.width)]
            first = torch.stack(logits) if logits else None
            sequences = [self._sequence(task) for task in tasks]
            part.rows.join([Joining(task.id, one, task.width, self._own_tokens(task)) for task, one in pairs])
        except Exception as error:  # noqa: BLE001 - the caller receives it
            if len(tasks) == 1:
                self._end(tasks[0], _as_mesh_error(error))
                return
            # One of several is at fault, or they are too much together: each by itself.
            for task in tasks:
                self._join(place, [task])
            return
        self._parts[place] = part
        for task, sequence in zip(tasks, sequences, strict=True):
            part.layout.add(task.id, task.width)
            part.running[task.id] = task
            task.sequence = sequence
            if (read := task.prefill) is not None:
                # Its keys and values are in the batch now: free those of the prompt.
                task.prefill = ReadPrompt(read.prompt, read.computed, read.reused)
        if first is None:
            return
        at = 0
        rows = {}
        for task, _ in known:
            rows[task.id] = range(at, at + task.width)
            at += task.width
        begun = [task for task, _ in known]
        mine = {one.id: one.sequence for one in begun if one.sequence is not None}
        try:
            select_tokens(first, rows, mine, normalised=self._network.normalised)
        except Exception as error:  # noqa: BLE001 - the callers receive it
            failed = _as_mesh_error(error)
            self._remove(place, begun, lambda _: failed)
            return
        self._stepped(place, begun)

    def _sequence(self, task: Task) -> SingleSequence | BeamSequences:
        prompt, transcript, decoding = task.prompt, task.transcript, task.request.decoding
        assert prompt is not None and transcript is not None, "prompts are made before"  # noqa: S101, PT018
        behind = prompt.start or prompt.rows[0]
        source = [token for row in prompt.rows for token in row] if prompt.start else ()
        processors = self._rules.processors(
            len(behind), decoding.max_new_tokens, task.width, source, prompt.spans
        )

        def emit(text: str) -> None:
            if not task.lost:
                notify(task, lambda: task.listener.on_delta(text))

        if decoding.num_beams > 1:
            return BeamSequences(decoding, self._rules, processors, behind, transcript, emit)
        # By all that is read: other contexts of a question are other draws, and none is its rankings'.
        stream = repr(prompt.rows) if decoding.temperature > 0 else ""
        return SingleSequence(decoding, stream, self._rules, processors, behind, transcript, emit)

    def _step(self, tenant: str) -> dict[str, int]:
        """Compute one token for every row of the batch of a tenant; return the rows of each tenant in it."""
        name = self._batch_of(tenant)
        places = [place for place in self._parts if place.batch == name]
        stepped: dict[str, int] = {}
        for place in places:
            part = self._parts[place]
            for task in part.running.values():
                task.batch_rows = max(task.batch_rows, len(part.layout))
                stepped[task.tenant] = stepped.get(task.tenant, 0) + task.width
        failures = self._side_by_side.map(self._next_tokens, [self._parts[place] for place in places])
        for place, error in zip(places, failures, strict=True):
            tasks = list(self._parts[place].running.values())
            if error is None:
                self._counts.steps += 1
                self._counts.step_rows += len(self._parts[place].layout)
                self._stepped(place, tasks)
            else:
                self._give_up(place, tasks, error)
        return stepped

    def _next_tokens(self, part: _Part) -> MeshError | None:
        """Compute and select the next token of every row; return why its requests fail, if they do.

        It changes nothing but the part, for others are computed at the same time.
        """
        try:
            logits = part.rows.step(part.newest())
            select_tokens(logits, part.layout.rows, part.sequences(), normalised=self._network.normalised)
        except Exception as error:  # noqa: BLE001 - the callers receive it
            return _as_mesh_error(error)  # its traceback would keep the part
        return None

    def _stepped(self, place: _Place, tasks: Sequence[Task]) -> None:
        """Rearrange the rows of answers that have a next token, and end those that are done."""
        now = time.monotonic()
        for task in tasks:
            task.first = task.first or now
            if task.cancel.cancelled:
                self._note_late_step(task)
        self._counts.written_tokens += len(tasks)
        going = [(one, one.sequence) for one in tasks if one.sequence is not None]
        parents = {task.id: one.parents for task, one in going if one.parents is not None and not one.done}
        done = [task for task, one in going if one.done]
        try:
            if parents or done:
                self._leave(place, done, parents)
        except Exception as error:  # noqa: BLE001 - the callers receive it
            self._give_up(place, tasks, _as_mesh_error(error))
            return
        for task in done:
            self._end(task, answered(task, _as_mesh_error))

    def _remove(self, place: _Place, tasks: Sequence[Task], why: Callable[[Task], Outcome]) -> None:
        """End requests and give their rows back."""
        try:
            self._leave(place, tasks, {})
        except Exception as error:  # noqa: BLE001 - the callers receive it
            self._give_up(place, tasks, _as_mesh_error(error))
            return
        for task in tasks:
            self._end(task, why(task))

    def _leave(self, place: _Place, tasks: Sequence[Task], parents: dict[int, list[int]]) -> None:
        part = self._parts[place]
        left = {one.id: one.width for one in tasks}
        for owner in left:
            del part.running[owner]
        if not part.running:
            del self._parts[place]
            return
        sources = part.layout.settle(parents, left)
        part.rows.settle(sources, part.layout.rows, left)

    def _give_up(self, place: _Place, tasks: Sequence[Task], error: MeshError) -> None:
        """End these requests and all others of their part of the batch, and go on without it."""
        part = self._parts.pop(place, None)
        lost = {one.id: one for one in [*tasks, *(part.running.values() if part else ())]}
        for task in lost.values():
            self._end(task, error)

    def _judge(self, tenant: str) -> dict[str, int]:
        """Compute one pass over passages to judge, a tenant's first; return the tokens of each tenant."""
        passages = [_Passage(one, at) for one in self._judging for at in self._prefills(one)]
        waiting = self._in_turns(passages, tenant)
        missing = _by_similar_length([one for one in waiting if not one.prefill.done])
        failed: dict[int, MeshError] = {}

        def fail(place: int, error: MeshError) -> None:
            failed[id(missing[place].judgement)] = error

        tokens: dict[str, int] = {}
        if missing:
            tokens = self._advance([one.prefill for one in missing], [one.tenant for one in missing], fail)
        ready = [one for one in waiting if one.prefill.done and id(one.judgement) not in failed]
        lengths = [one.judgement.prompts[one.at].tokens for one in ready]
        for batch in by_length(lengths, self._limits.pass_tokens, size=self._limits.judge_rows):
            self._judge_together([ready[place] for place in batch], failed)
        for judgement in list(self._judging):
            if id(judgement) in failed:
                self._judging.remove(judgement)
                self._refuse(judgement, failed[id(judgement)])
            elif len(judgement.scores) == len(judgement.prompts):
                self._judging.remove(judgement)
                self._settle(judgement)
        return tokens

    def _prefills(self, judgement: Judgement) -> Mapping[int, Prefill]:
        """Return the prompts of passages without scores, begun if they were not."""
        if not judgement.prefills:
            judgement.prefills = {
                at: self._network.prefill(prompt) for at, prompt in enumerate(judgement.prompts)
            }
        return judgement.prefills

    def _judge_together(self, items: Sequence[_Passage], failed: dict[int, MeshError]) -> None:
        try:
            logits = self._network.judge([one.prefill for one in items]).double()
            log_probs = logits if self._network.normalised else logits.log_softmax(-1)
            true = log_probs.gather(1, upload([[one.judgement.true] for one in items], logits.device))
            false = log_probs.gather(1, upload([[one.judgement.false] for one in items], logits.device))
            pairs = torch.cat([true, false], 1).tolist()
        except Exception as error:  # noqa: BLE001 - the caller receives it
            if len(items) == 1:
                failed[id(items[0].judgement)] = _as_mesh_error(error)
                return
            for item in items:
                self._judge_together([item], failed)
            return
        for one, pair in zip(items, pairs, strict=True):
            if any(map(math.isnan, pair)):
                failed[id(one.judgement)] = no_numbers()
            one.judgement.scores[one.at] = (pair[0], pair[1])
            # Free what was read: a thousand passages' keys and values would not fit.
            prefill = one.judgement.prefills.pop(one.at)
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


def _by_similar_length(items: Sequence[_Passage]) -> list[_Passage]:
    """Return the first of these, then those of similar length: this pads little, and none starves."""
    if not items:
        return []
    near = items[:_SIMILAR_AMONG]
    lengths = [one.judgement.prompts[one.at].tokens for one in near]
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
