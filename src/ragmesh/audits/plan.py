"""What an audit of many queries asks, cell by cell, and the records it writes of it."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from raglab.files import AuditRecord, Labels, Queries, Query
from ragmesh.audit import AuditSample
from ragmesh.passage import Passage
from ragmesh.request import AskOptions, Metric, SamplingStage
from ragmesh.shards import WHOLE, Shard

ORACLE = "oracle"
"""What is added to a system's name for the rankings of the oracle over its pools."""


@dataclass(frozen=True, slots=True)
class System:
    """What ranks: a retriever of a collection, or an expression; and the reranker after it."""

    retriever: str = ""
    expression: str = ""
    reranker: str = "none"

    @property
    def name(self) -> str:
        """Its name in records."""
        if self.expression:
            return self.expression
        return self.retriever if self.reranker == "none" else f"{self.retriever}+{self.reranker}"


@dataclass(frozen=True, slots=True)
class Cell:
    """One query, ranked by one system and answered by one model."""

    query: Query
    system: System
    model: str

    @property
    def name(self) -> str:
        """Its name in the journal."""
        return json.dumps([self.query.query_id, self.system.name, self.model], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """An audit of many queries.

    Attributes:
        queries: what is asked.
        labels: what is useful.
        systems: what ranks, each once.
        models: what answers, each once.
        alphas: fairness dials.
        samples: rankings of each, 1 to 1,000.
        seed: of the sampling.
        oracle: rankings of the oracle; None for as many as ``samples``.
        collection: where passages come from; None for the mesh's own, or where queries bring theirs.
        k: passages the generator is given; None for the mesh's default.
        depth: size of the pool; None for the mesh's default.
        stage: over whose scores rankings are drawn; None for the mesh's default.
        metric: how answers are scored; None for token F1.
        min_grade: grade from which a passage is useful.
        until_width: stop sampling a dial at this width of its interval; None to draw all.
        level: probability with which the interval holds.
        answers: whether answers are generated.
        run_id: run that observations are filed under; empty for one named after the settings.
        observe: whether the evaluator is told.
        timeout: seconds a cell may take.
        template: prompt by name; None for the model's own.
    """

    queries: Queries
    labels: Labels
    systems: Sequence[System]
    models: Sequence[str]
    alphas: Sequence[float] = (1.0, 2.0, 4.0, 8.0)
    samples: int = 100
    seed: int = 0
    oracle: int | None = None
    collection: str | None = None
    k: int | None = None
    depth: int | None = None
    stage: SamplingStage | None = None
    metric: Metric | None = None
    min_grade: float = 1.0
    until_width: float | None = None
    level: float = 0.95
    answers: bool = True
    run_id: str = ""
    observe: bool = True
    timeout: float = field(default=600.0)
    template: str | None = None

    def cells(self, shard: Shard = WHOLE) -> Iterator[Cell]:
        """The cells of a shard, query by query."""
        for query in shard.of(self.queries.queries):
            for system in self.systems:
                for model in self.models:
                    yield Cell(query, system, model)

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        """What decides the results of a shard, as JSON can say it."""
        # The name of an expression does not tell what reranks it.
        rerankers = [one.reranker for one in self.systems if one.expression and one.reranker != "none"]
        return {
            "queries": hashlib.sha256(self.queries.path.read_bytes()).hexdigest(),
            "labels": hashlib.sha256(self.labels.path.read_bytes()).hexdigest(),
            "systems": [system.name for system in self.systems],
            "models": list(self.models),
            "alphas": list(self.alphas),
            "samples": self.samples,
            "seed": self.seed,
            "oracle": self.samples if self.oracle is None else self.oracle,
            "collection": self.collection or "",
            "k": self.k,
            "depth": self.depth,
            "stage": self.stage,
            "metric": self.metric or "token_f1",
            "min_grade": self.min_grade,
            "until_width": self.until_width,
            "level": self.level,
            "answers": self.answers,
            "shard": str(shard),
            # Named only where they are given: journals from before there was a choice go on.
            **({"template": self.template} if self.template else {}),
            **({"reranker of expressions": rerankers} if rerankers else {}),
        }

    @property
    def digest(self) -> str:
        """A name of what decides the results, 12 characters, the same for all shards."""
        return hashlib.sha256(json.dumps(self.settings()).encode()).hexdigest()[:12]

    def useful(self, query: Query) -> list[str]:
        """Ids of the useful passages of a query, ascending."""
        grades = self.labels.grades.get(query.query_id, {})
        return sorted(passage for passage, grade in grades.items() if grade >= self.min_grade)

    def options(self, cell: Cell) -> AskOptions:
        """How a cell is asked."""
        system, query = cell.system, cell.query
        options: AskOptions = {
            "samples": self.samples,
            "seed": self.seed,
            "sampling_stage": self.stage,
            "depth": self.depth,
            "model": cell.model,
            "useful": self.useful(query),
            "references": query.references if self.answers else None,
            "metric": self.metric,
            "query_id": identifier(query.query_id),
            "run_id": self.run_id or f"audit-{self.digest}",
            "observe": self.observe,
        }
        if query.search is not None:
            options["search"] = query.search
        if self.template:
            options["template"] = self.template
        if system.expression:
            options["expression"] = system.expression
            options["reranker"] = system.reranker if system.reranker != "none" else None
        else:
            options["retriever"], options["reranker"], options["k"] = (
                system.retriever,
                system.reranker,
                self.k,
            )
            if query.passages:
                options["passages"] = [
                    Passage(one.id, one.text, one.title, one.attributes) for one in query.passages
                ]
            else:
                options["collection"] = self.collection
        if not self.answers:
            options["num_answers"] = 0
        return options


def records(cell: Cell, samples: Sequence[AuditSample], pool: Sequence[str] = ()) -> list[str]:
    """The lines of a cell in the format of docs/eval.md; a ranking of no passages has none.

    The references stand on the first of them, and what rankings were drawn from on the first of each system.

    Args:
        cell: what was asked.
        samples: what came of it.
        pool: ids of what rankings were drawn from.
    """
    lines: list[str] = []
    told: set[str] = set()
    for sample in samples:
        if not sample.passage_ids:
            continue
        oracle = sample.policy == ORACLE
        system = f"{cell.system.name}/{ORACLE}" if oracle else cell.system.name
        record = AuditRecord(
            query_id=cell.query.query_id,
            ranking=list(sample.passage_ids),
            system=system,
            alpha=sample.alpha,
            sample=sample.sample,
            answer=sample.answer,
            references=None if lines or not cell.query.references else list(cell.query.references),
            utility=sample.utility,
            log_probability=sample.log_probability,
            pool=None if system in told or not pool else list(pool),
        )
        told.add(system)
        lines.append(record.model_dump_json(exclude_none=True))
    return lines


def identifier(query_id: str) -> str:
    """The query's id as the mesh takes it, at most 128 bytes: a long one by its SHA-256."""
    if len(query_id.encode()) <= 128:
        return query_id
    return f"sha256:{hashlib.sha256(query_id.encode()).hexdigest()}"
