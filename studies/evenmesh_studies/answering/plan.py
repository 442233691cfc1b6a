"""What an evaluation of answering asks, and the records it writes."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from evenmesh.types.passage import Passage
from evenmesh.types.request import AskOptions, Decoding
from evenmesh_lab.files.answered import AnsweredRecord, TimesRecord
from evenmesh_lab.files.questions import Question, QuestionSet
from evenmesh_lab.studies.correctness import holds
from evenmesh_studies.runner import WHOLE, Shard
from evenmesh_studies.runner.queries import file_digest, identifier

RECORDS: Final = "answers"
"""Name of the file of answers."""
TIMES: Final = "times"
"""Name of the file of times."""


@dataclass(frozen=True, slots=True)
class EvaluatedSet:
    """A set of questions and the collection they are asked of."""

    questions: QuestionSet
    collection: str


@dataclass(frozen=True, slots=True)
class Ranker:
    """A retriever, a reranker or ``none``, and the number of passages they rank."""

    retriever: str
    reranker: str
    n: int


@dataclass(frozen=True, slots=True)
class AnsweringUnit:
    """One question, ranked once, and answered by every model from every number of passages."""

    asked: EvaluatedSet
    question: Question
    ranker: Ranker

    @property
    def name(self) -> str:
        """Name in the journal."""
        ranker = self.ranker
        parts = [
            self.asked.questions.name,
            self.question.query_id,
            ranker.retriever,
            ranker.reranker,
            ranker.n,
        ]
        return json.dumps(parts, ensure_ascii=False)

    @property
    def title(self) -> str:
        """Name in messages."""
        ranker = self.ranker
        return f"{self.question.query_id!r} with {ranker.retriever}, {ranker.reranker}, {ranker.n}"

    @property
    def records(self) -> str:
        """Name of the file of answers."""
        return RECORDS


@dataclass(frozen=True, slots=True)
class AnsweringPlan:
    """An evaluation of retrieval, reranking and answering.

    Attributes:
        asked: data sets, each with its collection.
        retrievers: by name, each once.
        rerankers: by name, each once; ``none`` for the retriever's order.
        depths: passages retrieved and ranked, 1 to 100; without a reranker only the largest.
        contexts: passages given to the model, at most each of the depths.
        models: generator's models, each once.
        decoding: how tokens are chosen.
        template: prompt by name; None for that of claims, and the model's own for others.
        seed: of the draw of questions.
        timeout: seconds for one call.
    """

    kind: ClassVar[str] = "rag"

    asked: Sequence[EvaluatedSet]
    retrievers: Sequence[str]
    rerankers: Sequence[str]
    depths: Sequence[int]
    contexts: Sequence[int]
    models: Sequence[str]
    decoding: Decoding
    template: str | None = None
    seed: int = 0
    timeout: float = 600.0

    @property
    def rankers(self) -> list[Ranker]:
        """All combinations of retriever, reranker and depth, in reading order."""
        return [
            Ranker(retriever, reranker, n)
            for retriever in self.retrievers
            for reranker in self.rerankers
            # Without a reranker a smaller depth is a prefix of the largest.
            for n in (self.depths if reranker != "none" else [max(self.depths)])
        ]

    def units(self, shard: Shard = WHOLE) -> Iterator[AnsweringUnit]:
        """Return the units of a shard, question by question."""
        for asked in self.asked:
            for question in shard.of(asked.questions.questions):
                for ranker in self.rankers:
                    yield AnsweringUnit(asked, question, ranker)

    def settings(self, shard: Shard = WHOLE) -> dict[str, Any]:
        """Return everything that decides the results of a shard, as JSON values."""
        return {
            "data": [
                [
                    one.questions.name,
                    one.collection,
                    file_digest(one.questions.path),
                    _digest([question.query_id for question in one.questions.questions]),
                ]
                for one in self.asked
            ],
            "retrievers": list(self.retrievers),
            "rerankers": list(self.rerankers),
            "n": list(self.depths),
            "k": list(self.contexts),
            "models": list(self.models),
            "beams": self.decoding.num_beams,
            "tokens": self.decoding.max_new_tokens,
            **({"stop": list(self.decoding.stop)} if self.decoding.stop else {}),
            "template": self.template or "",
            "seed": self.seed,
            **shard.settings,
        }

    def options(self, unit: AnsweringUnit) -> AskOptions:
        """Return the options of a unit's ask, which ranks without answering or observing."""
        options: AskOptions = {
            "collection": unit.asked.collection,
            "retriever": unit.ranker.retriever,
            "reranker": unit.ranker.reranker,
            "depth": unit.ranker.n,
            "rerank_depth": unit.ranker.n,
            "k": unit.ranker.n,
            "num_answers": 0,
            "observe": False,
            "query_id": identifier(unit.question.query_id),
        }
        if unit.question.turns:
            options["turns"] = unit.question.turns
        return options


@dataclass(frozen=True, slots=True)
class RankedPool:
    """The passages of a unit as retrieved and as ranked, and the time that took in milliseconds."""

    retrieved: Sequence[Passage]
    order: Sequence[int]
    """Places in ``retrieved``, best first."""
    retrieve_ms: float | None
    rerank_ms: float | None

    @property
    def ranking(self) -> list[Passage]:
        """Passages, best first."""
        return [self.retrieved[place] for place in self.order]


@dataclass(frozen=True, slots=True)
class ContextAnswer:
    """A model's answer from the first k passages, or the reason it has none."""

    model: str
    k: int
    answer: str | None
    failure: str | None
    generate_ms: float | None


def records(
    unit: AnsweringUnit, ranked: RankedPool, answers: Sequence[ContextAnswer]
) -> tuple[list[AnsweredRecord], list[TimesRecord]]:
    """Return the records of a unit: an answer and its times for each model and number of passages."""
    question, ranking = unit.question, ranked.ranking
    facts: Mapping[str, Any] = {
        "dataset": unit.asked.questions.name,
        "query_id": question.query_id,
        "retriever": unit.ranker.retriever,
        "reranker": unit.ranker.reranker,
        "n": unit.ranker.n,
    }
    answered = [
        AnsweredRecord(
            **facts,
            k=one.k,
            model=one.model,
            group=question.group,
            passages=len(ranked.retrieved),
            context=[passage.id for passage in ranking[: one.k]],
            answer=one.answer,
            failure=one.failure,
            references=list(question.references),
            options=dict(question.options) or None,
            right=question.right or None,
            answerable=question.answerable,
            first_before=_first(ranked.retrieved, question),
            first_after=_first(ranking, question),
            gold=len(question.gold),
            gold_before=_ranks(ranked.retrieved, question),
            gold_after=_ranks(ranking, question),
        )
        for one in answers
    ]
    times = [
        TimesRecord(
            **facts,
            k=one.k,
            model=one.model,
            retrieve_ms=ranked.retrieve_ms,
            rerank_ms=ranked.rerank_ms,
            generate_ms=one.generate_ms,
        )
        for one in answers
    ]
    return answered, times


def _first(passages: Sequence[Passage], question: Question) -> int | None:
    for rank, passage in enumerate(passages, start=1):
        held = f"{passage.title} {passage.text}"
        if any(holds(held, reference) for reference in question.references):
            return rank
    return None


def _ranks(passages: Sequence[Passage], question: Question) -> list[int]:
    return [rank for rank, passage in enumerate(passages, start=1) if passage.id in question.gold]


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()
