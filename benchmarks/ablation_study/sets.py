"""What the models are asked: questions that none of them was trained on, and the passages of their set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.price_study import sets as price
from benchmarks.shared_data import folder, rows
from benchmarks.vote_study import sets as votes
from evenmesh_generator.domain import Passage
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.weighting import Lucene
from evenmesh_training.rankrag.data.datasets import Request, Split, reader
from evenmesh_training.rankrag.data.examples import Kind
from evenmesh_training.rankrag.recipe import Context

MOST: Final = 500
"""Questions of a data set that are asked at most."""
DEPTH: Final = 20
"""Passages of BM25 that are ranked."""
_SEED: Final = 28


@dataclass(frozen=True)
class Question(votes.Question):
    """A question with its accepted answers and the passages that answer it.

    Attributes:
        gold: ids of the passages.
    """

    gold: Set[str]


@dataclass(frozen=True)
class Asked:
    """A data set as it is asked.

    Attributes:
        questions: in the order in which they are asked.
        passages: that are searched.
    """

    questions: Sequence[Question]
    passages: Sequence[Passage]

    def found(self) -> list[list[Passage]]:
        """Return BM25's best passages for each question: Lucene's idf, English analyzer."""
        words = analyzer("english")
        contents = (words.tokens(f"{one.title} {one.text}") for one in self.passages)
        index = CsrIndex(build(contents), Lucene())
        return [
            [self.passages[row] for row in index.search(words.tokens(one.text), DEPTH).rows.tolist()]
            for one in self.questions
        ]


def _voted(name: str, questions: str, passages: str) -> Asked:
    """Return the first questions of the study of votes."""
    gold = {row["id"]: row["gold_passage_ids"] for row in rows(folder(name) / questions)}
    return Asked(
        [
            Question(one.id, one.text, one.answers, frozenset(gold[one.id]))
            for one in votes.SETS[name]()[:MOST]
        ],
        _passages(folder(name) / passages),
    )


def _priced() -> Asked:
    """Return the first questions of the study of the price."""
    asked = price.SETS["bioasq-golden"]()
    return Asked(
        [
            Question(
                one, asked.judged.queries[one], tuple(asked.answers[one]), set(asked.judged.judgements[one])
            )
            for one in asked.order[:MOST]
        ],
        asked.judged.passages,
    )


def _held_out(name: str) -> Asked:
    """Return the questions that training leaves out."""
    found = reader(name).read(Request(folder(name).parent, Split.HELD_OUT, Kind.CONTEXT_RICH_QA, Context()))
    items = sorted((one for one in found.items if one.gold), key=lambda one: one.id)
    order = np.random.default_rng(_SEED).permutation(len(items))[:MOST].tolist()
    return Asked(
        [
            Question(one.id, one.question, one.answers, {found.passages[row].id for row in one.gold})
            for one in (items[place] for place in order)
        ],
        found.passages,
    )


def _multihop() -> Asked:
    """Return all of multihop-small: no model of this study was trained on any."""
    name = "multihop-small"
    found = sorted(rows(folder(name) / "questions.jsonl.gz"), key=lambda row: row["id"])
    return Asked(
        [
            Question(row["id"], row["question"], tuple(row["answers"]), frozenset(row["gold_passage_ids"]))
            for row in found[:MOST]
        ],
        _passages(folder(name) / "passages.jsonl.gz"),
    )


def _passages(path: Path) -> list[Passage]:
    return [Passage(row["id"], row.get("title", ""), row["text"]) for row in rows(path)]


SETS: Final[Mapping[str, Callable[[], Asked]]] = {
    "squad-open": lambda: _voted("squad-open", "questions.dev.jsonl.gz", "passages.dev.jsonl.gz"),
    "nq-passages": lambda: _held_out("nq-passages"),
    "google-re": lambda: _voted("google-re", "slots.jsonl.gz", "passages.jsonl.gz"),
    "bioasq-golden": _priced,
    "multihop-small": _multihop,
}
