"""What a study of an ensemble asks, and the records it writes."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, ClassVar

from evenmesh.types.request import AskOptions
from evenmesh_lab.files import EnsembleRecord, Queries, Query
from evenmesh_studies.ensembles.pool import Pool
from evenmesh_studies.runner import WHOLE, Shard, Stored, stem
from evenmesh_studies.runner.queries import file_digest, identifier


@dataclass(frozen=True, slots=True)
class Dataset:
    """A named set of questions."""

    name: str
    queries: Queries


@dataclass(frozen=True, slots=True)
class EnsembleUnit:
    """One question of a data set, answered by one model with every retriever of the pool."""

    dataset: str
    query: Query
    model: str

    @property
    def name(self) -> str:
        """Name in the journal."""
        return json.dumps([self.dataset, self.query.query_id, self.model], ensure_ascii=False)

    @property
    def title(self) -> str:
        """Name in messages."""
        return f"{self.query.query_id!r} of {self.dataset} with {self.model}"

    @property
    def records(self) -> str:
        """Name of the records file of the data set and the model."""
        return records_name(self.dataset, self.model)


def records_name(dataset: str, model: str) -> str:
    """Return the name of the records file of a data set and a model."""
    return f"{stem(dataset)}.{stem(model)}"


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """A study of an ensemble of retrievers.

    Attributes:
        datasets: question sets, each name once.
        pool: retrievers.
        models: generator's models, each once.
        train_share: share of the questions to learn weights on, in (0, 1).
        seed: of the questions' order and split.
        sample: most questions of each data set, from 1; None for all. A run with a larger sample resumes one
            with a smaller: neither order nor split depends on it.
        versions: of each member's indexes when the run began.
        timeout: seconds for one question with all retrievers.
    """

    kind: ClassVar[str] = "eor"

    datasets: Sequence[Dataset]
    pool: Pool
    models: Sequence[str]
    train_share: float = 0.5
    seed: int = 0
    sample: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0

    def chosen(self, dataset: Dataset) -> list[Query]:
        """Return the questions of a data set to ask, ordered by a hash with the seed."""
        ordered = sorted(
            dataset.queries.queries, key=lambda query: (self._draw("order", query), query.query_id)
        )
        return ordered[: self.sample]

    def is_training(self, query: Query) -> bool:
        """Return whether weights are learned on a question; the others test them."""
        return self._draw("split", query) < self.train_share

    def units(self, shard: Shard = WHOLE) -> Iterator[EnsembleUnit]:
        """Return the units of a shard. Data sets take turns, so that a partial run covers them evenly."""
        for row in zip_longest(*(shard.of(self.chosen(dataset)) for dataset in self.datasets)):
            for dataset, query in zip(self.datasets, row, strict=True):
                if query is not None:
                    for model in self.models:
                        yield EnsembleUnit(dataset.name, query, model)

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        """Return everything that decides the answers of a shard, as JSON values.

        How many questions are asked and how they are split is not part of it.
        """
        return {
            "datasets": {one.name: file_digest(one.queries.path) for one in self.datasets},
            "pool": list(self.pool.members),
            "reranker": self.pool.reranker,
            "models": list(self.models),
            "seed": self.seed,
            "indexes": dict(self.versions),
            **shard.settings,
        }

    def changed_datasets(self, stored: Stored) -> list[str]:
        """Return a line for each data set whose questions are not those of a run."""
        asked = stored.settings.get("datasets", {})
        return [
            f"{one.queries.path}: the run was not asked these questions as {one.name!r}"
            for one in self.datasets
            if asked.get(one.name) != file_digest(one.queries.path)
        ]

    def options(self, unit: EnsembleUnit) -> AskOptions:
        """Return the options of a unit's ask."""
        return {
            "ensemble": list(self.pool.members),
            "reranker": self.pool.reranker,
            "model": unit.model,
            "query_id": identifier(unit.query.query_id),
            "observe": False,
        }

    def _draw(self, purpose: str, query: Query) -> float:
        """Return a number in [0, 1) that depends on the seed and the question's id alone."""
        digest = hashlib.sha256(f"{purpose} {self.seed} {query.query_id}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """The answer with one retriever; ``context`` is None where the mesh does not report it."""

    text: str
    context: str | None


def records(unit: EnsembleUnit, members: Sequence[str], answers: Mapping[str, MemberAnswer]) -> list[str]:
    """Return the records of a unit, one JSON line per member in the pool's order (docs/guides/eval.md).

    The first record carries the question and the references.
    """
    lines = []
    for place, member in enumerate(members):
        answer = answers[member]
        record = EnsembleRecord(
            query_id=unit.query.query_id,
            retriever=member,
            answer=answer.text,
            question="" if place else unit.query.question,
            references=None if place else list(unit.query.references),
            context=answer.context,
        )
        lines.append(record.model_dump_json(exclude_none=True, exclude_defaults=True))
    return lines
