"""What an audit asks, and the records it writes."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from evenmesh.types.audit import AuditSample
from evenmesh.types.request import AskOptions, Metric, SamplingStage
from evenmesh_lab.files import AuditRecord, Labels, Queries, Query
from evenmesh_studies.runner import WHOLE, Shard, stem
from evenmesh_studies.runner.queries import file_digest, identifier, own_passages

DEFAULT_METRIC: Final = "token_f1"
"""How the mesh scores answers where a plan does not say."""

ORACLE = "oracle"
"""Added to a system's name for the oracle's rankings of its pools."""


@dataclass(frozen=True, slots=True)
class RankingSystem:
    """A retriever of a collection, or an expression, and the reranker after it."""

    retriever: str = ""
    expression: str = ""
    reranker: str = "none"

    @property
    def name(self) -> str:
        """Name in records."""
        if self.expression:
            return self.expression
        return self.retriever if self.reranker == "none" else f"{self.retriever}+{self.reranker}"


@dataclass(frozen=True, slots=True)
class AuditUnit:
    """One query, ranked by one system and answered by one model."""

    query: Query
    system: RankingSystem
    model: str

    @property
    def name(self) -> str:
        """Name in the journal."""
        return json.dumps([self.query.query_id, self.system.name, self.model], ensure_ascii=False)

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"{self.query.query_id!r} with {self.system.name} and {self.model}"

    @property
    def records(self) -> str:
        """Name of the model's records file."""
        return records_name(self.model)


def records_name(model: str) -> str:
    """Return the name of a model's records file; ``rankings`` where nothing is answered."""
    return stem(model) if model else "rankings"


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """An audit of many queries.

    Attributes:
        queries: questions.
        labels: useful passages.
        systems: each once.
        models: generator's models, each once.
        alphas: fairness dials.
        samples: rankings for each dial, 1 to 1,000.
        seed: of the sampling.
        oracle: rankings of the oracle; None for ``samples``.
        collection: source of passages; None for the mesh's default, or where queries bring their own.
        k: passages the generator is given; None for the mesh's default.
        depth: size of the pool; None for the mesh's default.
        stage: stage whose scores rankings are drawn from; None for the mesh's default.
        metric: scores answers; None for token F1.
        min_grade: grade from which a passage is useful.
        until_width: width of the interval at which a dial's sampling stops; None to draw all.
        level: confidence level of the intervals.
        answers: whether answers are generated.
        run_id: run that observations are filed under; empty for one derived from the settings.
        observe: whether observations go to the evaluator.
        timeout: seconds for one unit.
        template: prompt by name; None for the model's own.
    """

    kind: ClassVar[str] = "audit"

    queries: Queries
    labels: Labels
    systems: Sequence[RankingSystem]
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
    timeout: float = 600.0
    template: str | None = None

    def units(self, shard: Shard = WHOLE) -> Iterator[AuditUnit]:
        """Return the units of a shard, query by query."""
        for query in shard.of(self.queries.queries):
            for system in self.systems:
                for model in self.models:
                    yield AuditUnit(query, system, model)

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        """Return everything that decides the results of a shard, as JSON values."""
        # The name of an expression does not say which reranker follows it.
        rerankers = [one.reranker for one in self.systems if one.expression and one.reranker != "none"]
        return {
            "queries": file_digest(self.queries.path),
            "labels": file_digest(self.labels.path),
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
            "metric": self.metric or DEFAULT_METRIC,
            "min_grade": self.min_grade,
            "until_width": self.until_width,
            "level": self.level,
            "answers": self.answers,
            "shard": str(shard),
            # Present only where set, so that journals older than these settings still resume.
            **({"template": self.template} if self.template else {}),
            **({"reranker of expressions": rerankers} if rerankers else {}),
        }

    @property
    def digest(self) -> str:
        """Digest of the settings, 12 characters, equal for all shards."""
        return hashlib.sha256(json.dumps(self.settings()).encode()).hexdigest()[:12]

    def useful(self, query: Query) -> list[str]:
        """Return the ids of a query's useful passages, ascending."""
        grades = self.labels.grades.get(query.query_id, {})
        return sorted(passage for passage, grade in grades.items() if grade >= self.min_grade)

    def options(self, unit: AuditUnit) -> AskOptions:
        """Return the options of a unit's audit call."""
        system, query = unit.system, unit.query
        options: AskOptions = {
            "samples": self.samples,
            "seed": self.seed,
            "sampling_stage": self.stage,
            "depth": self.depth,
            "model": unit.model,
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
            options |= {"retriever": system.retriever, "reranker": system.reranker, "k": self.k}
            if query.passages:
                options["passages"] = own_passages(query)
            else:
                options["collection"] = self.collection
        if not self.answers:
            options["num_answers"] = 0
        return options


def records(unit: AuditUnit, samples: Sequence[AuditSample], pool: Sequence[str] = ()) -> list[str]:
    """Return a unit's records, one JSON line per ranking (docs/guides/eval.md); empty rankings have none.

    The first record carries the references; the first of each system carries the pool.

    Args:
        unit: what was asked.
        samples: rankings and answers.
        pool: ids of the passages that rankings were drawn from.
    """
    lines: list[str] = []
    with_pool: set[str] = set()
    for sample in samples:
        if not sample.passage_ids:
            continue
        oracle = sample.policy == ORACLE
        system = f"{unit.system.name}/{ORACLE}" if oracle else unit.system.name
        record = AuditRecord(
            query_id=unit.query.query_id,
            ranking=list(sample.passage_ids),
            system=system,
            alpha=sample.alpha,
            sample=sample.sample,
            answer=sample.answer,
            references=None if lines or not unit.query.references else list(unit.query.references),
            utility=sample.utility,
            log_probability=sample.log_probability,
            pool=None if system in with_pool or not pool else list(pool),
        )
        with_pool.add(system)
        lines.append(record.model_dump_json(exclude_none=True))
    return lines
