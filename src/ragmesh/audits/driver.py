"""The run of an audit of many queries: a few cells at a time, each written once, through restarts."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from meshkit.errors import Unavailable
from raglab.files import Journal
from ragmesh.aio import AsyncClient
from ragmesh.audit import AuditSample, AuditSettled
from ragmesh.audits.plan import AuditPlan, Cell, records
from ragmesh.events import Degraded, Done
from ragmesh.patience import PASSING, PASSING_REASONS, Waits, in_order, patiently


@dataclass(frozen=True, slots=True)
class Written:
    """A cell is written: how many rankings it has, and how many of them no answer."""

    cell: Cell
    rankings: int
    unanswered: int


class Watcher(Waits, Protocol):
    """Who is told how the run goes."""

    def written(self, what: Written) -> None:
        """A cell is written."""


@dataclass(frozen=True, slots=True)
class _Answered:
    lines: list[str]
    facts: Mapping[str, str]
    rankings: int
    unanswered: int


async def run(
    client: AsyncClient,
    plan: AuditPlan,
    journal: Journal,
    cells: Iterable[Cell],
    file_of: Callable[[str], str],
    watcher: Watcher,
    *,
    in_flight: int = 2,
    patience_s: float = 600.0,
) -> None:
    """Runs the cells that are not written yet; they are written in their order, so that equal runs are equal.

    Args:
        client: of the mesh.
        plan: what is run.
        journal: where it is written.
        cells: of the plan.
        file_of: the file of a model's records.
        watcher: is told how it goes.
        in_flight: cells asked at a time, from 1.
        patience_s: how long the mesh may fail one cell before the run gives up. Seconds.

    Raises:
        MeshError: the mesh refuses a cell, or fails it for longer than that.
        FileError: what the mesh runs on changed since the run began.
    """
    done = set(journal.done)

    async def answered(cell: Cell) -> _Answered:
        what = f"{cell.query.query_id!r} with {cell.system.name} and {cell.model}"
        return await patiently(lambda: _asked(client, plan, cell), what, watcher, patience_s=patience_s)

    async def write(cell: Cell, found: _Answered) -> None:
        await asyncio.to_thread(journal.add, cell.name, file_of(cell.model), found.lines, found.facts)
        watcher.written(Written(cell, found.rankings, found.unanswered))

    todo = [cell for cell in cells if cell.name not in done]
    await in_order(todo, answered, write, in_flight=in_flight)


async def _asked(client: AsyncClient, plan: AuditPlan, cell: Cell) -> _Answered:
    """One audit, whole: what a passing failure left without answer is asked again, and not written."""
    samples: list[AuditSample] = []
    facts: dict[str, str] = {}
    pool: Sequence[str] = ()
    finished = False
    events = client.audit(
        cell.query.question,
        alphas=plan.alphas,
        oracle=plan.oracle,
        until_width=plan.until_width,
        level=plan.level if plan.answers else None,
        timeout=plan.timeout,
        **plan.options(cell),
    )
    async with aclosing(events) as stream:  # type: ignore[type-var]  # it is a generator
        async for event in stream:
            match event:
                case AuditSettled():
                    name, pool = cell.system.name, event.passage_ids
                    facts[f"retriever of {name}"] = event.retriever
                    facts[f"index of {name}"] = event.index_version
                    facts[f"reranker of {name}"] = f"{event.reranker} {event.reranker_version}".strip()
                case AuditSample():
                    samples.append(event)
                    if event.model:
                        facts[f"version of {event.model}"] = event.model_version
                    if event.failure is not None and event.failure.code in PASSING:
                        raise Unavailable("NO_ANSWER", event.failure.message)
                case Degraded(stage=stage, reason=reason) if stage != "observe" and reason in PASSING_REASONS:
                    raise Unavailable(reason, event.message)
                case Done():
                    finished = True
                case _:
                    pass
    if not finished:
        raise Unavailable("CUT_OFF", "the orchestrator ended the audit in the middle")
    unanswered = sum(one.answer is None for one in samples) if plan.answers else 0
    return _Answered(records(cell, samples, pool), facts, len(samples), unanswered)
