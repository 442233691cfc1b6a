"""Label passages by utility: the answer from each passage alone against the answer without any.

Source: Kim and Diaz, "Towards Fair RAG", section 3.1, appendix B and algorithm 1.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import grpc

from evenmesh import AsyncClient, Client
from evenmesh.addresses import Addresses
from evenmesh.generation import Generation, WrittenAnswer
from evenmesh.inventory import models
from evenmesh.long_runs import may_pass
from evenmesh.types.events import Failed
from evenmesh.types.passage import Passage
from evenmesh.types.request import AskOptions, Augmentation
from evenmesh.wire.errors import MeshError, Unavailable
from evenmesh_lab.files import GainRecord, Queries, Query, read_gains
from evenmesh_lab.studies.utility import METRICS
from evenmesh_studies.runner import WHOLE, Perform, Result, Shard, preflight, stem
from evenmesh_studies.runner.preflight import Preflight, repeated
from evenmesh_studies.runner.queries import file_digest, identifier, own_passages

_AT_ONCE: Final = 2
"""Calls of one query at a time."""


@dataclass(frozen=True, slots=True)
class LabelUnit:
    """One query and the model it is labelled for."""

    query: Query
    model: str

    @property
    def name(self) -> str:
        """Name in the journal."""
        return json.dumps([self.query.query_id, self.model], ensure_ascii=False)

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"{self.query.query_id!r} for {self.model}"

    @property
    def records(self) -> str:
        """Name of the model's file of gains."""
        return records_name(self.model)


def records_name(model: str) -> str:
    """Return the name of a model's file of gains."""
    return f"{stem(model)}.gains"


@dataclass(frozen=True, slots=True)
class LabelPlan:
    """What to label.

    Attributes:
        queries: questions; those without passages of their own use the pool of the retrievers.
        models: generator's models; labels are of a task and a model.
        retrievers: whose pools are labelled, together.
        collection: source of the pools; None for the mesh's default.
        depth: size of each pool, 1 to 1,000.
        metric: scores answers, a name of :data:`evenmesh_lab.studies.utility.METRICS`.
        augmentation: how a passage is handed over; None for the model's default.
        batch: answers of one call, 1 to 256.
        timeout: seconds for one call.
        template: prompt of one passage by name; None for the model's own.
    """

    kind: ClassVar[str] = "label"

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

    def units(self, shard: Shard = WHOLE) -> Iterator[LabelUnit]:
        """Return every query of a shard for every model."""
        for query in shard.of(self.queries.queries):
            for model in self.models:
                yield LabelUnit(query, model)

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        """Return everything that decides the labels of a shard, as JSON values."""
        return {
            "queries": file_digest(self.queries.path),
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
        """Return the options of an ask for a query's pool, which is neither answered nor observed."""
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


def check(plan: LabelPlan, client: Client, others: Sequence[str] = ()) -> Preflight:
    """Return all problems of a plan on its mesh.

    Args:
        plan: to be run; its file has been read.
        client: of the mesh.
        others: problems found before, reported with the rest.

    Raises:
        MeshError: the mesh does not answer.
    """
    queries = plan.queries
    found = Preflight([*others, *preflight.queries(queries, scored="references to score answers against")])
    if plan.metric not in METRICS:
        found.problems.append(f"--metric {plan.metric}: allowed: {', '.join(METRICS)}")
    found.problems.extend(repeated("--retriever: given", plan.retrievers))
    found.problems.extend(preflight.models(plan.models, models(client.addresses)))
    searched = next((query for query in queries.queries if not query.passages), None)
    versions: set[str] = set()
    if searched is not None:
        for retriever in dict.fromkeys(plan.retrievers):
            with found.noting_refusals(retriever):
                result = client.answer(searched.question, timeout=120, **plan.search(searched, retriever))
                versions |= set() if result.retrieved is None else {result.retrieved.index_version}
    if versions:
        found.problems.extend(preflight.embedding(preflight.searched(client.collections(), versions)))
    if not found.problems and (plan.template or plan.augmentation):
        found.problems.extend(
            asyncio.run(
                preflight.generation_problems(
                    plan.models, client.addresses, template=plan.template, augmentation=plan.augmentation
                )
            )
        )
    return found


@asynccontextmanager
async def connected(plan: LabelPlan, addresses: Addresses) -> AsyncIterator[Perform[LabelUnit]]:
    """Give a function that does one unit of a plan, within connections to the mesh."""
    async with AsyncClient(addresses) as client, Generation(addresses) as generation:
        yield partial(label, client, generation, plan)


def gains(plan: LabelPlan, files: Sequence[Path]) -> list[GainRecord]:
    """Return the gains of passages, in the plan's order of queries, whatever shards wrote them.

    Args:
        plan: what was labelled.
        files: of one model.

    Raises:
        FileError: a file cannot be read.
    """
    places = {query.query_id: place for place, query in enumerate(plan.queries.queries)}
    found = [record for path in files for record in read_gains(path)]
    return sorted(found, key=lambda one: places[one.query_id])


async def label(client: AsyncClient, generation: Generation, plan: LabelPlan, unit: LabelUnit) -> Result:
    """Answer one query from nothing and from each passage alone, and score the answers.

    Raises:
        MeshError: the mesh refuses the query, or fails in a way that may pass.
    """
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
        if isinstance(outcome, Failed) and may_pass(outcome.code, outcome.reason):
            raise Unavailable("NO_ANSWER", outcome.message)
    if len(outcomes) != len(contexts):
        raise Unavailable("CUT_OFF", "the generator did not answer everything")
    found = _gains(plan, unit, passages, outcomes, facts)
    query_id, notes = unit.query.query_id, []
    if unknown := sum(one.useful is None for one in found):
        notes.append(
            f"query {query_id!r} for {unit.model}: {unknown:,} of {len(found):,} passages could not be "
            "answered from; they have no label"
        )
    if not found:
        notes.append(f"query {query_id!r} has no passages")
    return Result([one.model_dump_json(exclude_none=True) for one in found], facts, notes)


def _gains(
    plan: LabelPlan,
    unit: LabelUnit,
    passages: Sequence[Passage],
    outcomes: Sequence[WrittenAnswer | Failed],
    facts: dict[str, str],
) -> list[GainRecord]:
    """Return δ of every passage of one query (algorithm 1)."""
    without, *alone = outcomes
    if isinstance(without, Failed):
        code, message = grpc.StatusCode[without.code], f"without passages: {without.message}"
        raise MeshError(code, without.reason, message, field=without.field or None)
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


async def _pool(client: AsyncClient, plan: LabelPlan, query: Query, facts: dict[str, str]) -> list[Passage]:
    """Return a query's own passages, or else those that the retrievers find, each once."""
    if query.passages:
        return own_passages(query)
    found: dict[str, Passage] = {}
    for retriever in plan.retrievers:
        result = await client.answer(query.question, timeout=plan.timeout, **plan.search(query, retriever))
        if result.retrieved is not None:
            facts[f"index of {retriever}"] = result.retrieved.index_version
            for passage in result.retrieved.passages:
                found.setdefault(passage.id, passage)
    return list(found.values())
