"""What an evaluation asks, unit by unit, and the records it writes of it."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raglab.files.answered import AnsweredRecord, TimesRecord
from raglab.files.questions import Question, QuestionSet
from raglab.studies.correctness import holds
from ragmesh.audits.plan import identifier
from ragmesh.passage import Passage
from ragmesh.request import AskOptions, Decoding


@dataclass(frozen=True, slots=True)
class Asked:
    """A set of questions and the collection they are asked of."""

    questions: QuestionSet
    collection: str


@dataclass(frozen=True, slots=True)
class Ranker:
    """What ranks: a retriever, a reranker (or ``none``), and how many passages."""

    retriever: str
    reranker: str
    n: int


@dataclass(frozen=True, slots=True)
class Unit:
    """One question, retrieved and ranked once, and answered by every model from every number of passages."""

    asked: Asked
    question: Question
    ranker: Ranker

    @property
    def name(self) -> str:
        """Its name in the journal."""
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
    def times_name(self) -> str:
        """The name in the journal of what it took."""
        return f"times {self.name}"


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """An evaluation.

    Attributes:
        asked: data sets, each with its collection.
        retrievers: by name, each once.
        rerankers: by name, each once; ``none`` for the retriever's order.
        depths: passages retrieved and ranked, 1 to 100; without a reranker only the largest.
        contexts: passages given to the model, at most each of the depths.
        models: what answers, each once.
        decoding: how tokens are chosen.
        template: prompt by name; None for the model's own.
        seed: of the choice of questions, for the record of settings.
        timeout: seconds a question may take.
    """

    asked: Sequence[Asked]
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
        """What ranks, in reading order."""
        return [
            Ranker(retriever, reranker, n)
            for retriever in self.retrievers
            for reranker in self.rerankers
            # What is not ranked does not change with how much is.
            for n in (self.depths if reranker != "none" else [max(self.depths)])
        ]

    def units(self) -> Iterator[Unit]:
        """All units, question by question."""
        for asked in self.asked:
            for question in asked.questions.questions:
                for ranker in self.rankers:
                    yield Unit(asked, question, ranker)

    def settings(self) -> dict[str, Any]:
        """What decides the results, as JSON can say it."""
        return {
            "data": [
                [
                    one.questions.name,
                    one.collection,
                    hashlib.sha256(one.questions.path.read_bytes()).hexdigest(),
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
            "template": self.template or "",
            "seed": self.seed,
        }

    def options(self, unit: Unit) -> AskOptions:
        """How a unit's ranking is asked for: all that is ranked, nothing answered, and nobody told."""
        return {
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


@dataclass(frozen=True, slots=True)
class Ranked:
    """The passages of a unit, as retrieved and as ranked, and what that took."""

    retrieved: Sequence[Passage]
    order: Sequence[int]
    """Places in ``retrieved``, best first."""
    retrieve_ms: float | None
    rerank_ms: float | None

    @property
    def ranking(self) -> list[Passage]:
        """The passages, best first."""
        return [self.retrieved[place] for place in self.order]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a model made of the first k passages: an answer, or why there is none."""

    model: str
    k: int
    answer: str | None
    failure: str | None
    generate_ms: float | None


def records(
    unit: Unit, ranked: Ranked, outcomes: Sequence[Outcome]
) -> tuple[list[AnsweredRecord], list[TimesRecord]]:
    """What a unit leaves: one record for each model and number of passages, and what each took."""
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
        for one in outcomes
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
        for one in outcomes
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
