"""What the study ranks: for each query the items of a first stage, their scores and their relevance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.rerank_table import judged_sets
from benchmarks.rerank_table.judged_sets import JudgedSet, with_judgements
from benchmarks.rerank_table.scoring import FOUND, FirstStages, standardized
from benchmarks.shared_data import folder, rows
from evenmesh_core.arrays import FloatArray

ALL: Final = 1_000_000
"""More questions than any data set has."""
RELEVANT: Final = 2
"""Lowest grade of msmarco-dl that counts as relevant, as its card says."""
SPLIT: Final = "train"
"""Of the track's queries; those of the evaluation are held back."""


@dataclass(frozen=True)
class Ranked:
    """What a first stage found for a query, best first.

    Attributes:
        query: its id.
        scores: of the items, float64, shape [items].
        useful: whether each is relevant, bool, shape [items].
        groups: of each item; empty where the data set has none.
    """

    query: str
    scores: FloatArray
    useful: np.ndarray[tuple[int], np.dtype[np.bool_]]
    groups: tuple[str, ...] = ()


Systems = Mapping[str, Sequence[Ranked]]
"""Queries by the first stage, the same queries in the same order for all of a data set."""


def searched(judged: JudgedSet, home: Path, groups: Mapping[str, str] | None = None) -> Systems:
    """Return what BM25, the dense encoder and their hybrid find; vectors are kept in ``home``."""
    stages = FirstStages(judged, home)
    found: dict[str, list[Ranked]] = defaultdict(list)
    for query in judged.queries:
        scores = stages.found(query)
        for name, given in (
            ("bm25", scores.bm25),
            ("dense", scores.dense),
            ("hybrid", standardized(scores.bm25, scores.dense)),
        ):
            relevant = {item for item, grade in judged.judgements[query].items() if grade > 0}
            found[name].append(_ranked(query, given, relevant, groups))
    return found


def _ranked(
    query: str, scores: Mapping[str, float], relevant: set[str], groups: Mapping[str, str] | None = None
) -> Ranked:
    items = sorted(scores, key=lambda one: (-scores[one], one))[:FOUND]
    return Ranked(
        query,
        np.array([scores[one] for one in items]),
        np.array([one in relevant for one in items], dtype=bool),
        tuple(groups[one] for one in items) if groups else (),
    )


def _claims(home: Path) -> Systems:
    found = judged_sets.load("climate-fever", ALL)
    kept = {
        query: text
        for query, text in found.queries.items()
        if sum(grade > 0 for grade in found.judgements[query].values()) > 1
    }
    judgements = {query: found.judgements[query] for query in kept}
    return searched(JudgedSet(found.name, found.passages, kept, judgements), home)


def _wordings(home: Path) -> Systems:
    judged = with_judgements("grep-biasir", ALL)
    groups = {row["id"]: row["group"] for row in rows(folder("grep-biasir") / "documents.jsonl.gz")}
    return searched(judged, home, groups)


def _runs(_: Path) -> Systems:
    """Return the six runs that come with msmarco-dl."""
    data = folder("msmarco-dl-rerank")
    relevant: dict[str, set[str]] = defaultdict(set)
    for row in rows(data / "qrels.jsonl.gz"):
        if int(row["relevance"]) >= RELEVANT:
            relevant[row["query_id"]].add(str(row["doc_id"]))
    found: dict[str, list[Ranked]] = defaultdict(list)
    for row in sorted(rows(data / "runs.jsonl.gz"), key=lambda row: str(row["query_id"])):
        scores = {str(item): float(score) for item, score in row["hits"]}
        found[row["run"]].append(_ranked(str(row["query_id"]), scores, relevant[row["query_id"]]))
    return found


def _all_of(name: str, home: Path) -> Systems:
    return searched(judged_sets.load(name, ALL), home)


SETS: Final[Mapping[str, Callable[[Path], Systems]]] = {
    "nfcorpus": partial(_all_of, "nfcorpus"),
    "cranfield": partial(_all_of, "cranfield"),
    "vaswani": partial(_all_of, "vaswani"),
    "climate-fever": _claims,
    "grep-biasir": _wordings,
    "msmarco-dl": _runs,
}
"""How each data set with scores is read; those searched keep their vectors in a folder."""


def papers() -> Iterator[tuple[float, list[str], list[bool]]]:
    """Yield frequency, papers by id and relevance of each of the track's queries that are here."""
    data = folder("trec-fair-2019")
    judged: dict[str, dict[str, bool]] = defaultdict(dict)
    for row in rows(data / "qrels.jsonl.gz"):
        if row["split"] == SPLIT:
            judged[row["query_id"]][row["doc_id"]] = row["relevance"] > 0
    for row in rows(data / "queries.jsonl.gz"):
        if row["split"] == SPLIT and judged[row["id"]]:
            items = sorted(judged[row["id"]])
            yield row["frequency"], items, [judged[row["id"]][one] for one in items]


def authors(definition: str) -> dict[str, list[str]]:
    """Return the known groups of the authors of each paper, by a column of the labels."""
    labels = rows(folder("trec-fair-2019") / "doc_groups.jsonl.gz")
    found = {row["doc_id"]: [str(one) for one in row[definition] if one != "unknown"] for row in labels}
    return {paper: groups for paper, groups in found.items() if groups}
