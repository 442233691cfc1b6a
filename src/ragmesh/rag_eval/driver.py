"""The run of an evaluation: a few units at a time, each written once, through restarts of services."""

import asyncio
import math
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Protocol

from meshkit.errors import Unavailable
from raglab.files import Journal
from ragmesh.aio import AsyncClient
from ragmesh.events import AskResult, Degraded, Done, Event, Failed
from ragmesh.generation import Generation, WrittenAnswer
from ragmesh.patience import PASSING, PASSING_REASONS, Waits, in_order, patiently
from ragmesh.rag_eval.plan import EvaluationPlan, Outcome, Ranked, Unit, records

RECORDS: Final = "answers.jsonl"
TIMES: Final = "times.jsonl"


@dataclass(frozen=True, slots=True)
class Written:
    """A unit is written: how many answers it has, and how many there could not be."""

    unit: Unit
    answers: int
    unanswered: int
    passages: int


class Watcher(Waits, Protocol):
    """Who is told how the run goes."""

    def written(self, what: Written) -> None:
        """A unit is written."""


@dataclass(frozen=True, slots=True)
class _Done:
    ranked: Ranked
    outcomes: list[Outcome]
    facts: dict[str, str]


async def run(
    client: AsyncClient,
    generation: Generation,
    plan: EvaluationPlan,
    journal: Journal,
    units: Iterable[Unit],
    watcher: Watcher,
    *,
    in_flight: int = 2,
    patience_s: float = 600.0,
) -> None:
    """Runs the units that are not written yet; they are written in their order, so that equal runs are equal.

    Args:
        client: retrieves and ranks.
        generation: answers.
        plan: what is run.
        journal: where it is written: answers, and beside them what they took.
        units: of the plan.
        watcher: is told how it goes.
        in_flight: units at a time, from 1.
        patience_s: how long the mesh may fail one unit before the run gives up. Seconds.

    Raises:
        MeshError: the mesh refuses a unit, or fails it for longer than that.
        FileError: what the mesh runs on changed since the run began.
    """
    done = set(journal.done)

    async def answered(unit: Unit) -> _Done:
        ranker = unit.ranker
        what = f"{unit.question.query_id!r} with {ranker.retriever}, {ranker.reranker}, {ranker.n}"
        return await patiently(
            lambda: _answered(client, generation, plan, unit), what, watcher, patience_s=patience_s
        )

    async def write(unit: Unit, found: _Done) -> None:
        answers, times = records(unit, found.ranked, found.outcomes)
        lines = [one.model_dump_json(exclude_none=True, exclude_defaults=True) for one in answers]
        # What a unit took goes first: only its answers say that it is done.
        if unit.times_name not in done:
            taken = [one.model_dump_json(exclude_none=True) for one in times]
            await asyncio.to_thread(journal.add, unit.times_name, TIMES, taken)
        await asyncio.to_thread(journal.add, unit.name, RECORDS, lines, found.facts)
        unanswered = sum(one.answer is None for one in answers)
        watcher.written(Written(unit, len(answers), unanswered, len(found.ranked.retrieved)))

    todo = [unit for unit in units if unit.name not in done]
    await in_order(todo, answered, write, in_flight=in_flight)


async def _answered(client: AsyncClient, generation: Generation, plan: EvaluationPlan, unit: Unit) -> _Done:
    facts: dict[str, str] = {}
    ranked = await _ranked(client, plan, unit, facts)
    ranking = ranked.ranking
    outcomes = []
    for model in plan.models:
        for k in plan.contexts:
            # One by one: what an answer takes is what it takes alone.
            (outcome,) = await generation.answers(
                unit.question.asked,
                [ranking[:k]],
                model=model,
                template=plan.template,
                decoding=plan.decoding,
                timeout=plan.timeout,
            )
            if isinstance(outcome, Failed) and outcome.code in PASSING:
                raise Unavailable("NO_ANSWER", outcome.message)
            outcomes.append(_outcome(model, k, outcome))
            if isinstance(outcome, WrittenAnswer):
                facts[f"version of {outcome.model}"] = outcome.model_version
    return _Done(ranked, outcomes, facts)


async def _ranked(client: AsyncClient, plan: EvaluationPlan, unit: Unit, facts: dict[str, str]) -> Ranked:
    """A ranking, whole: one that a passing failure left to the retriever is asked for again."""
    events: list[Event] = []
    stream = client.ask(unit.question.question, timeout=plan.timeout, **plan.options(unit))
    async with aclosing(stream) as asked:  # type: ignore[type-var]  # it is a generator
        async for event in asked:
            if isinstance(event, Degraded) and event.reason in PASSING_REASONS:
                raise Unavailable(event.reason, event.message)
            events.append(event)
    result = AskResult.of(unit.question.question, events)
    if not isinstance(result.done, Done) or result.retrieved is None or result.ranked is None:
        raise Unavailable("CUT_OFF", "the orchestrator ended the ask in the middle")
    ranker = unit.ranker
    facts[f"index of {ranker.retriever} in {unit.asked.collection}"] = result.retrieved.index_version
    if ranker.reranker != "none":
        facts[f"version of {result.ranked.reranker}"] = result.ranked.model_version
    order = result.ranked.contexts[0] if result.ranked.contexts else ()
    times = result.done.stage_ms
    return Ranked(
        retrieved=result.retrieved.passages[: ranker.n],
        order=order,
        retrieve_ms=times.get("retrieve"),
        rerank_ms=times.get("rerank", 0.0 if ranker.reranker == "none" else None),
    )


def _outcome(model: str, k: int, outcome: WrittenAnswer | Failed) -> Outcome:
    if isinstance(outcome, Failed):
        return Outcome(model, k, None, f"{outcome.code}: {outcome.message}", None)
    taken = None if math.isnan(outcome.total_ms) else outcome.total_ms
    return Outcome(model, k, outcome.text, None, taken)
