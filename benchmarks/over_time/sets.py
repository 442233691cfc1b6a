"""The sets of the study: passages with a provider, and questions with useful passages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bm25s
import numpy as np

from benchmarks.shared_data import folder, rows
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure_balance import merit_shares
from evenmesh_core.near_duplicates import near_duplicates
from evenmesh_core.plackett_luce import normalize_scores

DEPTH: Final = 20
"""Passages of a pool."""
MILLION: Final = 1_000_000


@dataclass(frozen=True, eq=False)
class Pool:
    """Candidates of one question: scores, providers, 1 for judged ones, and what each deserves."""

    scores: FloatArray
    providers: Sequence[str]
    useful: FloatArray
    merit: FloatArray
    question: str = ""
    """Its id."""
    passages: Sequence[int] = ()
    """Their places in the set."""

    @property
    def relevance(self) -> FloatArray:
        """Return the relevance by score: 1 for the best candidate, 0 for the last."""
        return normalize_scores(self.scores) - 1.0


@dataclass(frozen=True)
class Judged:
    """Passages with a provider, questions by id, and the ids of their useful passages."""

    passages: Sequence[dict[str, Any]]
    questions: dict[str, str]
    useful: dict[str, set[str]]


def _judged(name: str, passages: str, queries: str, question: str, provider: str) -> Judged:
    data = folder(name)
    useful: dict[str, set[str]] = {}
    for row in rows(data / "qrels.jsonl.gz"):
        if int(row["relevance"]) > 0:
            useful.setdefault(row["query_id"], set()).add(row["doc_id"])
    found = [{**row, "provider": row[provider]} for row in rows(data / passages)]
    return Judged(found, {row["id"]: row[question] for row in rows(data / queries)}, useful)


def _gold(name: str, provider: Callable[[dict[str, Any]], str]) -> Judged:
    data = folder(name)
    questions = rows(data / "questions.jsonl.gz")
    return Judged(
        [{**row, "provider": provider(row)} for row in rows(data / "passages.jsonl.gz")],
        {row["id"]: row["question"] for row in questions},
        {row["id"]: set(row["gold_passage_ids"]) for row in questions},
    )


def pubmed_million(row: dict[str, Any]) -> str:
    """Return when PubMed took up an abstract, as the million of its number: numbers grow with time."""
    return str(int(row["id"].removeprefix("pmid")) // MILLION)


SETS: Final[dict[str, tuple[str, Callable[[], Judged]]]] = {
    "climate-fever": (
        "Wikipedia article",
        lambda: _judged("climate-fever", "passages.jsonl.gz", "claims.jsonl.gz", "claim", "provider"),
    ),
    "grep-biasir": (
        "gender",
        lambda: _judged("grep-biasir", "documents.jsonl.gz", "queries.jsonl.gz", "query", "group"),
    ),
    "bioasq-golden": ("million of PubMed's number", lambda: _gold("bioasq-golden", pubmed_million)),
    "nq-passages": ("Wikipedia article", lambda: _gold("nq-passages", lambda row: str(row["title"]))),
}
"""What the provider is, and how to read it."""


def pools(found: Judged) -> list[Pool]:
    """Return the best 20 passages by BM25 of each question that has a useful one among them."""
    index = bm25s.BM25()
    texts = [f"{one['title']} {one['text']}" for one in found.passages]
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    made = []
    for id_, question in found.questions.items():
        tokens = bm25s.tokenize([question], show_progress=False)
        places, scores = index.retrieve(tokens, k=DEPTH, show_progress=False)
        some = [found.passages[place] for place in places[0].tolist()]
        marks = np.array([float(one["id"] in found.useful.get(id_, ())) for one in some])
        if not marks.any():
            continue
        merit = merit_shares(
            normalize_scores(scores[0]) - 1.0, near_duplicates([one["text"] for one in some])
        )
        providers = [one["provider"] for one in some]
        made.append(
            Pool(scores[0].astype(np.float64), providers, marks, merit, id_, tuple(places[0].tolist()))
        )
    return made
