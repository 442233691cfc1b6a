"""The run of a study: a few questions at a time, each written once with all retrievers, through restarts."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from meshkit.errors import Unavailable
from raglab.files import FileError, Journal
from ragmesh.aio import AsyncClient
from ragmesh.eor.plan import EorPlan, MemberAnswer, Unit, records
from ragmesh.eor.pool import tells_context
from ragmesh.events import Answer, Degraded, Done, Failed, Ranked, Retrieved
from ragmesh.passage import Passage
from ragmesh.patience import PASSING, PASSING_REASONS, Waits, in_order, patiently


@dataclass(frozen=True, slots=True)
class Written:
    """A unit is written; ``unanswered`` names the retrievers that the model could not answer with, and where
    there are any, nothing else was written of it."""

    unit: Unit
    unanswered: tuple[str, ...]


class Watcher(Waits, Protocol):
    """Who is told how the run goes."""

    def written(self, what: Written) -> None:
        """A unit is written."""


@dataclass(frozen=True, slots=True)
class _Answered:
    lines: list[str]
    facts: Mapping[str, str]
    unanswered: tuple[str, ...]


async def run(
    client: AsyncClient,
    plan: EorPlan,
    journal: Journal,
    units: Iterable[Unit],
    file_of: Callable[[str, str], str],
    watcher: Watcher,
    *,
    in_flight: int = 2,
    patience_s: float = 600.0,
) -> None:
    """Runs the units that are not written yet; they are written in their order, so that equal runs are equal.

    Args:
        client: of the mesh.
        plan: what is run.
        journal: where it is written.
        units: of the plan.
        file_of: the file of a data set's and a model's records.
        watcher: is told how it goes.
        in_flight: questions asked at a time, from 1.
        patience_s: how long the mesh may fail one question before the run gives up. Seconds.

    Raises:
        MeshError: the mesh refuses a question, or fails it for longer than that.
        FileError: what the mesh runs on changed since the run began.
    """
    done = set(journal.done)

    async def answered(unit: Unit) -> _Answered:
        what = f"{unit.query.query_id!r} of {unit.dataset} with {unit.model}"
        return await patiently(
            lambda: _asked(client, plan, unit, journal), what, watcher, patience_s=patience_s
        )

    async def write(unit: Unit, found: _Answered) -> None:
        file = file_of(unit.dataset, unit.model)
        await asyncio.to_thread(journal.add, unit.name, file, found.lines, found.facts)
        watcher.written(Written(unit, found.unanswered))

    todo = [unit for unit in units if unit.name not in done]
    await in_order(todo, answered, write, in_flight=in_flight)


async def _asked(client: AsyncClient, plan: EorPlan, unit: Unit, journal: Journal) -> _Answered:
    """One question with every retriever; what met a passing failure is asked again and not written."""
    passages: list[Passage] = []
    ranked: dict[str, Ranked] = {}
    answers: dict[str, Answer] = {}
    refused: dict[str, Failed] = {}
    finished = False
    events = client.ask(unit.query.question, timeout=plan.timeout, **plan.options(unit))
    async with aclosing(events) as stream:  # type: ignore[type-var]  # it is a generator
        async for event in stream:
            match event:
                case Retrieved():
                    passages.extend(event.passages)
                    _unchanged(plan, event, journal)
                case Ranked():
                    ranked[event.member] = event
                case Answer():
                    answers[event.member] = event
                case Failed():
                    if event.code in PASSING:
                        raise Unavailable("NO_ANSWER", event.message)
                    refused[event.member] = event
                case Degraded(stage=stage, reason=reason) if stage != "observe" and reason in PASSING_REASONS:
                    raise Unavailable(reason, event.message)
                case Done():
                    finished = True
                case _:
                    pass
    members = plan.pool.members
    if not finished or any(one not in answers and one not in refused for one in members):
        raise Unavailable("CUT_OFF", "the orchestrator ended the ask in the middle")
    facts = _facts(members, ranked, answers)
    if refused:
        return _Answered([], facts, tuple(one for one in members if one in refused))
    told = {
        member: MemberAnswer(
            answers[member].text,
            _context(passages, ranked.get(member)) if tells_context(member) else None,
        )
        for member in members
    }
    return _Answered(records(unit, members, told), facts, ())


def _unchanged(plan: EorPlan, event: Retrieved, journal: Journal) -> None:
    """Refuses passages of another index than that of the run's beginning.

    Raises:
        FileError: they are.
    """
    before = plan.versions.get(event.retriever, event.index_version)
    if event.index_version and before != event.index_version:
        raise FileError(
            journal.path,
            None,
            f"the index of {event.retriever} was {before!r} and is {event.index_version!r} now: results of "
            "both do not go together; begin again in another folder",
        )


def _facts(
    members: Sequence[str], ranked: Mapping[str, Ranked], answers: Mapping[str, Answer]
) -> dict[str, str]:
    """What made the answers, in the order of the members, whatever order they came in."""
    facts: dict[str, str] = {}
    for member in members:
        if (settled := ranked.get(member)) is not None and settled.reranker not in ("", "none"):
            facts[f"reranker of {member}"] = f"{settled.reranker} {settled.model_version}".strip()
    for member in members:
        if (answer := answers.get(member)) is not None:
            facts[f"version of {answer.model}"] = answer.model_version
            facts[f"engine of {answer.model}"] = answer.engine
    return facts


def _context(passages: Sequence[Passage], settled: Ranked | None) -> str:
    """What the generator was given, in one text; nothing where nothing was found or wanted."""
    if settled is None or not settled.contexts:
        return ""
    shown = [passages[index] for index in settled.contexts[0]]
    return "\n\n".join(f"{one.title}\n{one.text}" if one.title else one.text for one in shown)
