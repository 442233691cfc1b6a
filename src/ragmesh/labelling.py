"""Utility labels by algorithm 1 of fair-rag: every passage alone, against the answer without any.

Source: Kim and Diaz, "Towards Fair RAG", section 3.1 and appendix B.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from meshkit.errors import MeshError, Unavailable
from raglab.files import GainRecord, Journal, Queries, Query, read_gains
from raglab.studies.utility import METRICS
from ragmesh import preflight
from ragmesh.aio import AsyncClient
from ragmesh.audits.plan import identifier
from ragmesh.client import Client
from ragmesh.events import Failed
from ragmesh.generation import Generation, WrittenAnswer
from ragmesh.inventory import models
from ragmesh.passage import Passage
from ragmesh.patience import PASSING, Waits, in_order, patiently
from ragmesh.preflight import listed, twice
from ragmesh.request import AskOptions, Augmentation
from ragmesh.shards import WHOLE, Shard

_AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True)
class Unit:
    """One query and the model it is labelled for."""

    query: Query
    model: str

    @property
    def name(self) -> str:
        """Its name in the journal."""
        return json.dumps([self.query.query_id, self.model], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class LabelPlan:
    """What is to be labelled.

    Attributes:
        queries: what is asked; those that bring no passages of their own have the pool of the retrievers.
        models: for whom; labels are of a task and a model.
        retrievers: whose pools are labelled, together.
        collection: where the pools come from; None for the mesh's own.
        depth: size of each pool, 1 to 1,000.
        metric: how answers are scored, a name of :data:`raglab.studies.utility.METRICS`.
        augmentation: how a passage is handed over; None for the model's default.
        batch: answers of one call, 1 to 256.
        timeout: seconds a call may take.
        template: prompt of one passage by name; None for the model's own.
    """

    queries: Queries
    models: Sequence[str]
    retrievers: Sequence[str] = ("bm25",)
    collection: str | None = None
    depth: int = 100
    metric: str = "token_f1"
    augmentation: Augmentation | None = None
    batch: int = 32
    timeout: float = 600.0
    template: str | None = None

    def units(self, shard: Shard = WHOLE) -> Iterator[Unit]:
        """Every query of a shard for every model."""
        for query in shard.of(self.queries.queries):
            for model in self.models:
                yield Unit(query, model)

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        """What decides the labels of a shard, as JSON can say it."""
        return {
            "queries": hashlib.sha256(self.queries.path.read_bytes()).hexdigest(),
            "models": list(self.models),
            "retrievers": list(self.retrievers),
            "collection": self.collection or "",
            "depth": self.depth,
            "metric": self.metric,
            "augmentation": self.augmentation,
            **({"template": self.template} if self.template else {}),
            **shard.settings,
        }

    def search(self, query: Query, retriever: str) -> AskOptions:
        """How the pool of a query is asked for: nothing is answered, and nobody told."""
        return {
            "collection": self.collection,
            "retriever": retriever,
            "reranker": "none",
            "depth": self.depth,
            "k": 1,
            "num_answers": 0,
            "observe": False,
            "query_id": identifier(query.query_id),
            "search": query.search,
        }


@dataclass(frozen=True, slots=True)
class Labelled:
    """A unit is labelled: passages judged, useful ones among them, and those that could not be answered."""

    unit: Unit
    passages: int
    useful: int
    unknown: int


class Watcher(Waits, Protocol):
    """Who is told how the run goes."""

    def written(self, what: Labelled) -> None:
        """A unit is written."""


def problems(plan: LabelPlan, client: Client, others: Sequence[str] = ()) -> list[str]:
    """Everything that is wrong with a plan, a line each, before anything is generated.

    Args:
        plan: what is to be labelled; its file has been read.
        client: of the mesh.
        others: problems that were found before, to be told with the rest.

    Raises:
        MeshError: the mesh does not answer.
    """
    queries = plan.queries
    found = [*others, *map(str, queries.problems)]
    if not queries.queries and not queries.problems:
        found.append(f"{queries.path}: has no queries")
    found.extend(
        listed(
            f"{queries.path}: these queries have no references to score answers against",
            [query.query_id for query in queries.queries if not any(map(str.strip, query.references))],
        )
    )
    if plan.metric not in METRICS:
        found.append(f"--metric {plan.metric}: allowed: {', '.join(METRICS)}")
    found.extend(listed("--retriever: these are there twice", twice(plan.retrievers)))
    found.extend(preflight.models(plan.models, models(client.addresses)))
    searched = next((query for query in queries.queries if not query.passages), None)
    if searched is not None:
        found.extend(_probes(plan, searched, client))
    if not found and (plan.template or plan.augmentation):
        found = asyncio.run(
            preflight.unwritten(
                plan.models, client.addresses, template=plan.template, augmentation=plan.augmentation
            )
        )
    return found


def _probes(plan: LabelPlan, query: Query, client: Client) -> Iterator[str]:
    """Has every retriever find one query's pool, and looks at what they searched."""
    versions: set[str] = set()
    for retriever in dict.fromkeys(plan.retrievers):
        try:
            result = client.answer(query.question, timeout=120, **plan.search(query, retriever))
        except MeshError as error:
            if error.code.name not in preflight.REFUSALS:
                raise
            yield f"{retriever}: {error}"
        else:
            versions |= set() if result.retrieved is None else {result.retrieved.index_version}
    if versions:
        yield from preflight.embedding(preflight.searched(client.collections(), versions))


async def run(
    client: AsyncClient,
    generation: Generation,
    plan: LabelPlan,
    journal: Journal,
    units: Iterable[Unit],
    file_of: Callable[[str], str],
    watcher: Watcher,
    *,
    in_flight: int = 2,
    patience_s: float = 600.0,
) -> None:
    """Labels what is not labelled yet; units are written in their order.

    Args:
        client: finds the pools.
        generation: writes the answers.
        plan: what is labelled.
        journal: where it is written.
        units: of the plan.
        file_of: the file of a model's gains.
        watcher: is told how it goes.
        in_flight: units at a time, from 1.
        patience_s: how long the mesh may fail one unit before the run gives up. Seconds.

    Raises:
        MeshError: the mesh refuses a unit, or fails it for longer than that.
        FileError: what the mesh runs on changed since the run began.
    """
    done = set(journal.done)

    async def labelled(unit: Unit) -> tuple[list[GainRecord], dict[str, str]]:
        what = f"{unit.query.query_id!r} for {unit.model}"
        return await patiently(
            lambda: _labelled(client, generation, plan, unit), what, watcher, patience_s=patience_s
        )

    async def write(unit: Unit, found: tuple[list[GainRecord], dict[str, str]]) -> None:
        gains, facts = found
        lines = [one.model_dump_json(exclude_none=True) for one in gains]
        await asyncio.to_thread(journal.add, unit.name, file_of(unit.model), lines, facts)
        useful = sum(one.useful is True for one in gains)
        watcher.written(Labelled(unit, len(gains), useful, sum(one.useful is None for one in gains)))

    todo = [unit for unit in units if unit.name not in done]
    await in_order(todo, labelled, write, in_flight=in_flight)


def gains(plan: LabelPlan, files: Sequence[Path]) -> list[GainRecord]:
    """What passages gained, in the plan's order of queries, which is the same however they were divided.

    Args:
        plan: what was labelled.
        files: of one model.

    Raises:
        FileError: a file is at fault.
    """
    places = {query.query_id: place for place, query in enumerate(plan.queries.queries)}
    found = [record for path in files for record in read_gains(path)]
    return sorted(found, key=lambda one: places[one.query_id])


async def _labelled(
    client: AsyncClient, generation: Generation, plan: LabelPlan, unit: Unit
) -> tuple[list[GainRecord], dict[str, str]]:
    """The gains of one query, and the versions they were made with."""
    facts: dict[str, str] = {}
    passages = await _pool(client, plan, unit.query, facts)
    contexts: list[list[Passage]] = [[], *([passage] for passage in passages)]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def answers(start: int) -> list[WrittenAnswer | Failed]:
        async with gate:
            return await generation.answers(
                unit.query.question,
                contexts[start : start + plan.batch],
                model=unit.model,
                augmentation=plan.augmentation,
                template=plan.template,
                timeout=plan.timeout,
            )

    calls = [asyncio.create_task(answers(start)) for start in range(0, len(contexts), plan.batch)]
    try:
        outcomes = [one for call in calls for one in await call]
    finally:
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Failed) and outcome.code in PASSING:
            raise Unavailable("NO_ANSWER", outcome.message)
    if len(outcomes) != len(contexts):
        raise Unavailable("CUT_OFF", "the generator did not answer everything")
    return _gains(plan, unit, passages, outcomes, facts), facts


def _gains(
    plan: LabelPlan,
    unit: Unit,
    passages: Sequence[Passage],
    outcomes: Sequence[WrittenAnswer | Failed],
    facts: dict[str, str],
) -> list[GainRecord]:
    """Algorithm 1 for one query: δ of every passage."""
    without, *alone = outcomes
    if isinstance(without, Failed):
        raise MeshError(*_refused(without), field=without.field or None)
    facts[f"version of {without.model}"] = without.model_version
    metric, references = METRICS[plan.metric], unit.query.references
    scores: dict[str, float] = {}
    for outcome in outcomes:
        if isinstance(outcome, WrittenAnswer) and outcome.text not in scores:
            scores[outcome.text] = float(metric(outcome.text, references))
    return [
        GainRecord(
            query_id=unit.query.query_id,
            passage_id=passage.id,
            baseline=scores[without.text],
            utility=scores[outcome.text] if isinstance(outcome, WrittenAnswer) else None,
            answer=outcome.text if isinstance(outcome, WrittenAnswer) else None,
            provider=passage.provider or None,
        )
        for passage, outcome in zip(passages, alone, strict=True)
    ]


def _refused(failure: Failed) -> tuple[Any, str, str]:
    import grpc

    return grpc.StatusCode[failure.code], failure.reason, f"without passages: {failure.message}"


async def _pool(client: AsyncClient, plan: LabelPlan, query: Query, facts: dict[str, str]) -> list[Passage]:
    """What is labelled for a query: its own passages, or those that the retrievers find, each once."""
    if query.passages:
        return [Passage(one.id, one.text, one.title, one.attributes) for one in query.passages]
    found: dict[str, Passage] = {}
    for retriever in plan.retrievers:
        result = await client.answer(query.question, timeout=plan.timeout, **plan.search(query, retriever))
        if result.retrieved is not None:
            facts[f"index of {retriever}"] = result.retrieved.index_version
            for passage in result.retrieved.passages:
                found.setdefault(passage.id, passage)
    return list(found.values())
