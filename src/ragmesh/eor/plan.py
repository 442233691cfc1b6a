"""What a study of an ensemble asks, question by question, and the records it writes of it."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from raglab.files import EnsembleRecord, Queries, Query
from ragmesh.audits.plan import identifier
from ragmesh.eor.pool import Pool
from ragmesh.request import AskOptions
from ragmesh.shards import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class Dataset:
    """A question set and what it is called."""

    name: str
    queries: Queries


@dataclass(frozen=True, slots=True)
class Unit:
    """One question of a data set, answered by one model with every retriever of the pool."""

    dataset: str
    query: Query
    model: str

    @property
    def name(self) -> str:
        """Its name in the journal."""
        return json.dumps([self.dataset, self.query.query_id, self.model], ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class EorPlan:
    """A study of an ensemble of retrievers.

    Attributes:
        datasets: what is asked, each name once.
        pool: what retrieves.
        models: what answers, each once.
        train_share: share of the questions that weights are learned on, in (0, 1).
        seed: of the order of the questions and of their split.
        sample: most questions of each data set, from 1; None for all. A larger one goes on where a
            smaller one ended: whether a question is of the training split does not depend on it.
        versions: of each member's indexes, as the mesh told when the run began.
        timeout: seconds a question may take with all retrievers.
    """

    datasets: Sequence[Dataset]
    pool: Pool
    models: Sequence[str]
    train_share: float = 0.5
    seed: int = 0
    sample: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 600.0

    def chosen(self, dataset: Dataset) -> list[Query]:
        """The questions of a data set that are asked, in the order they are: that of a hash with the seed."""
        ordered = sorted(
            dataset.queries.queries, key=lambda query: (self._draw("order", query), query.query_id)
        )
        return ordered[: self.sample]

    def is_training(self, query: Query) -> bool:
        """Whether weights are learned on a question; all others they are tested on."""
        return self._draw("split", query) < self.train_share

    def units(self, shard: Shard = WHOLE) -> Iterator[Unit]:
        """What a shard asks: data sets in turn, so that whatever is there is about as much of each."""
        for row in zip_longest(*(shard.of(self.chosen(dataset)) for dataset in self.datasets)):
            for dataset, query in zip(self.datasets, row, strict=True):
                if query is not None:
                    for model in self.models:
                        yield Unit(dataset.name, query, model)

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        """What decides the answers of a shard, as JSON can say it; not how many are asked, nor how they are
        split."""
        return {
            "datasets": {
                one.name: hashlib.sha256(one.queries.path.read_bytes()).hexdigest() for one in self.datasets
            },
            "pool": list(self.pool.members),
            "reranker": self.pool.reranker,
            "models": list(self.models),
            "seed": self.seed,
            "indexes": dict(self.versions),
            **shard.settings,
        }

    def options(self, unit: Unit) -> AskOptions:
        """How a unit is asked."""
        return {
            "ensemble": list(self.pool.members),
            "reranker": self.pool.reranker,
            "model": unit.model,
            "query_id": identifier(unit.query.query_id),
            "observe": False,
        }

    def _draw(self, what: str, query: Query) -> float:
        """A number in [0, 1) that follows from the seed and the question's id alone."""
        digest = hashlib.sha256(f"{what} {self.seed} {query.query_id}".encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """What one retriever led to; ``context`` is None where the mesh does not tell it."""

    text: str
    context: str | None


def records(unit: Unit, members: Sequence[str], answers: Mapping[str, MemberAnswer]) -> list[str]:
    """The lines of a unit in the format of docs/eval.md, in the order of the members.

    Question and references stand on the first of them.
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
