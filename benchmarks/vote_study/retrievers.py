"""The twelve retrievers: what each shows for a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.rerank_table.scoring import FOUND, encoded, standardized
from benchmarks.vote_study.sets import SOURCES
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_generator.domain import Passage
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.bm25.csr import CsrIndex
from evenmesh_retriever.backends.bm25.postings import build
from evenmesh_retriever.backends.bm25.weighting import Lucene
from evenmesh_retriever.backends.dense.sentence_encoder import SentenceEncoder

ALL: Final = "all"
"""What searches all sources together is named so."""
_TOGETHER: Final = (1, 5)
_ALONE: Final = 3
NAMES: Final = (
    *(f"{ALL}-{kind}-{k}" for kind in ("bm25", "dense", "hybrid") for k in _TOGETHER),
    *(f"{source}-{kind}-{_ALONE}" for source in SOURCES for kind in ("bm25", "dense")),
)


class Retrievers:
    """All of them over the sources.

    Args:
        sources: passages of each source, ids of all are different.
        home: folder that keeps the vectors.
    """

    def __init__(self, sources: Mapping[str, Sequence[Passage]], home: Path) -> None:
        self.passages = {one.id: one for some in sources.values() for one in some}
        self._ids = list(self.passages)
        self._words = analyzer("english")
        contents = [f"{one.title} {one.text}" if one.title else one.text for one in self.passages.values()]
        tokens = [self._words.tokens(one) for one in contents]
        rows = {one: row for row, one in enumerate(self._ids)}
        self._rows: dict[str, IntArray] = {ALL: np.arange(len(self._ids))}
        self._rows |= {name: np.array([rows[one.id] for one in some]) for name, some in sources.items()}
        self._indexes = {
            name: CsrIndex(build(tokens[row] for row in some.tolist()), Lucene())
            for name, some in self._rows.items()
        }
        self._encoder = SentenceEncoder()
        self._vectors = encoded(self._encoder, contents, home)

    def show(self, question: str) -> dict[str, tuple[str, ...]]:
        """Return the ids of the passages that each of :data:`NAMES` shows, best first."""
        words = self._words.tokens(question)
        cosines: FloatArray = self._vectors @ self._encoder.encode_query(question)
        found: dict[str, tuple[str, ...]] = {}
        for name, rows in self._rows.items():
            best = self._indexes[name].search(words, FOUND)
            lexical = {
                self._ids[rows[row]]: float(value)
                for row, value in zip(best.rows.tolist(), best.scores.tolist(), strict=True)
                if value > 0
            }
            order = rows[np.argsort(-cosines[rows], kind="stable")[:FOUND]]
            dense = {self._ids[row]: float(cosines[row]) for row in order.tolist()}
            kinds = {"bm25": lexical, "dense": dense}
            if name == ALL:
                both = standardized(lexical, dense) if lexical else dense
                kinds["hybrid"] = dict(sorted(both.items(), key=lambda one: (-one[1], one[0])))
            for kind, scores in kinds.items():
                for k in _TOGETHER if name == ALL else (_ALONE,):
                    found[f"{name}-{kind}-{k}"] = tuple(list(scores)[:k])
        return {name: found[name] for name in NAMES}
