"""How well the retrievers find what is relevant.

Five data sets with judgements, each as its card says, over all of its passages; nothing is cached. Everything
is at its default, the same on every set: RRF with k = 60, which is its authors', and equal weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.shared_data import folder, rows
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_retriever.analyzer import UnicodeWordAnalyzer, analyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.weighting import Lucene, Okapi, Weighting
from evenmesh_retriever.backends.dense.flat import FlatIndex
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder
from evenmesh_retriever.backends.hybrid import Fusion
from evenmesh_retriever.domain import Passage, Scored
from evenmesh_retriever.ports import Analyzer

HEADING: Final = "Retrieval quality"
POOL: Final = 100
MOST_QUERIES: Final = 1_000

# Lucene's classic stop words: with them the card's figure for Cranfield comes out to the last digit.
_STOP_WORDS: Final = frozenset(
    {
        "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it",
        "no", "not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they",
        "this", "to", "was", "will", "with",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A data set: passages by ascending id, questions, and the grade of each relevant passage."""

    name: str
    passages: Sequence[Passage]
    queries: Mapping[str, str]
    grades: Mapping[str, Mapping[str, int]]
    card: float
    """nDCG@10 of BM25 on the data card, over all of its queries; some are held out here."""


@dataclass(frozen=True)
class Quality:
    """One retriever on one data set."""

    dataset: str
    retriever: str
    ndcg_at_10: float
    recall_at_100: float


class _CardAnalyzer:
    """What the cards' own BM25 counts: words without stop words and without the s of a plural."""

    name: Final = "card"

    def __init__(self) -> None:
        self._words = UnicodeWordAnalyzer()

    def tokens(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        words = (word for word in self._words.tokens(text) if word not in _STOP_WORDS)
        return [
            word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
            for word in words
        ]


LEXICAL: Final[Mapping[str, tuple[Callable[[], Analyzer], Weighting]]] = {
    "the card's recipe": (_CardAnalyzer, Lucene(0.9, 0.4)),
    "bm25": (lambda: analyzer("english"), Okapi()),
    "bm25-lucene, unicode": (lambda: analyzer("unicode"), Lucene()),
    "bm25-lucene": (lambda: analyzer("english"), Lucene()),
}


def measure() -> tuple[list[Quality], float]:
    """Run every retriever on all data sets; return what they find, and the minutes that took."""
    began, encoder = time.perf_counter(), SentenceEncoder()
    found = [one for data in DATASETS.values() for one in _measured(data(), encoder)]
    return found, (time.perf_counter() - began) / 60


def _measured(data: Judged, encoder: SentenceEncoder) -> list[Quality]:
    contents = [passage.content for passage in data.passages]
    runs: dict[str, list[Scored]] = {}
    for name, (make, weighting) in LEXICAL.items():
        words = make()
        index = CsrIndex(build(words.tokens(content) for content in contents), weighting)
        runs[name] = [index.search(words.tokens(query), POOL) for query in data.queries.values()]
    vectors = encoder.encode_passages(contents, lambda _: None)
    asked = np.stack([encoder.encode_query(query) for query in data.queries.values()])
    rows, scores = FlatIndex(vectors).search(asked, POOL)
    runs["dense"] = [Scored(*one) for one in zip(rows, scores, strict=True)]
    for name in ("bm25-lucene, unicode", "bm25-lucene"):
        label = "hybrid" + name.removeprefix("bm25-lucene")
        runs[label] = [
            Fusion().fused([_matching(lexical), dense], [1, 1], POOL)
            for lexical, dense in zip(runs[name], runs["dense"], strict=True)
        ]
    return [_quality(data, name, found) for name, found in runs.items()]


def _matching(found: Scored) -> Scored:
    matches = found.scores > 0
    return Scored(found.rows[matches], found.scores[matches])


def _quality(data: Judged, retriever: str, found: Sequence[Scored]) -> Quality:
    ids = [passage.id for passage in data.passages]
    rankings = {
        query: [ids[row] for row in one.rows.tolist()] for query, one in zip(data.queries, found, strict=True)
    }
    return Quality(
        data.name,
        retriever,
        float(ranking_metrics(rankings, data.grades, k=10).ndcg.mean()),
        float(ranking_metrics(rankings, data.grades, k=POOL).recall.mean()),
    )


def _judged(
    name: str,
    card: float,
    passages: Sequence[Mapping[str, str]],
    queries: Mapping[str, str],
    judgements: Sequence[Mapping[str, object]],
) -> Judged:
    """Return a data set with the queries that have something relevant."""
    grades: dict[str, dict[str, int]] = {}
    for row in judgements:
        query, grade = str(row["query_id"]), int(str(row["relevance"]))
        if query in queries and grade > 0:
            grades.setdefault(query, {})[str(row["doc_id"])] = grade
    return Judged(
        name,
        sorted((Passage(r["id"], r.get("title", ""), r["text"]) for r in passages), key=lambda one: one.id),
        {query: queries[query] for query in grades},
        grades,
        card,
    )


def _documents(
    name: str,
    card: float,
    *,
    documents: str = "documents",
    asked: str = "queries",
    query: str = "query",
    judgements: str = "qrels",
) -> Judged:
    """Read a data set from its files of these names; the text of a query has the name ``query``."""
    passages, questions, grades = (
        rows(folder(name) / f"{one}.jsonl.gz") for one in (documents, asked, judgements)
    )
    return _judged(name, card, passages, {row["id"]: row[query] for row in questions}, grades)


def _squad_open() -> Judged:
    here = folder("squad-open")
    asked = rows(here / "questions.dev.jsonl.gz")
    chosen = np.random.default_rng(0).choice(len(asked), min(MOST_QUERIES, len(asked)), replace=False)
    some = [asked[place] for place in sorted(chosen.tolist())]
    golden = [
        {"query_id": row["id"], "doc_id": one, "relevance": 1}
        for row in some
        for one in row["gold_passage_ids"]
    ]
    queries = {row["id"]: row["question"] for row in some}
    return _judged("squad-open", 0.8588, rows(here / "passages.dev.jsonl.gz"), queries, golden)


DATASETS: Final[Mapping[str, Callable[[], Judged]]] = {
    "nfcorpus": lambda: _documents("nfcorpus", 0.3171, judgements="qrels.dev"),
    "cranfield": lambda: _documents("cranfield", 0.3536),
    "vaswani": lambda: _documents("vaswani", 0.4123),
    "climate-fever": lambda: _documents(
        "climate-fever", 0.3336, documents="passages", asked="claims", query="claim"
    ),
    "squad-open": _squad_open,
}


def section(measured: tuple[Sequence[Quality], float]) -> str:
    """Return the section of the page."""
    found, minutes = measured
    datasets = [DATASETS[name]() for name in dict.fromkeys(one.dataset for one in found)]
    value = {(one.retriever, one.dataset): one for one in found}
    best = {data.name: max(one.ndcg_at_10 for one in found if one.dataset == data.name) for data in datasets}

    def shown(one: Quality) -> str:
        mark = "**" if one.ndcg_at_10 == best[one.dataset] else ""
        return f"{mark}{one.ndcg_at_10:.3f}{mark} / {one.recall_at_100:.3f}"

    rows = [
        ["", *(data.name for data in datasets)],
        ["---"] * (1 + len(datasets)),
        ["passages", *(f"{len(data.passages):,}" for data in datasets)],
        ["queries", *(f"{len(data.queries):,}" for data in datasets)],
        ["BM25 of the data card, on its queries", *(f"{data.card:.3f}" for data in datasets)],
    ]
    for retriever in dict.fromkeys(one.retriever for one in found):
        rows.append([retriever, *(shown(value[retriever, data.name]) for data in datasets)])
    lexical, dense, hybrid = "bm25-lucene", "dense", "hybrid"
    above = [
        data.name
        for data in datasets
        if value[hybrid, data.name].ndcg_at_10
        > max(value[lexical, data.name].ndcg_at_10, value[dense, data.name].ndcg_at_10)
    ]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"""nDCG@10 / recall@100, over the queries that have a relevant passage. Part of the cards'
queries is held out in this copy of the data, so the card's recipe (k1 = 0.9, b = 0.4, a small stop list, no
plural s) was run on the queries that are here: compare with that line. nfcorpus is judged on its dev queries
(the card's are its test queries), squad-open on {MOST_QUERIES:,} questions of dev over the passages of dev.

Everything is at its default, the same on every set, except that rows of `unicode` have that analyzer instead
of `english`: `all-MiniLM-L6-v2`, and for `hybrid` reciprocal rank fusion of `bm25-lucene` and `dense` with
k = 60 and equal weights, which were not chosen by these numbers.

{table}

Hybrid above both of its sides on {len(above)} of {len(datasets)}: {", ".join(above)}.
All of it took {minutes:.0f} minutes."""
