"""Find hard negatives with BM25."""

import re
from collections.abc import Iterable

import bm25s
import numpy as np

_WORDS = re.compile(r"[a-z0-9]+")


def words(text: str) -> list[str]:
    """Return lower-case runs of letters and digits: the words BM25 sees."""
    return _WORDS.findall(text.lower())


class Bm25Index:
    """BM25 over passages (Lucene's variant, k1 0.9, b 0.4); ties go to the passage that comes first."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
        tokens = [words(text) for text in texts]
        self._size = len(tokens)
        self._empty = not any(tokens)
        if not self._empty:
            self._index.index(tokens, show_progress=False)

    def best(self, query: str, depth: int) -> list[int]:
        """Return the places of the ``depth`` best passages that share a word with ``query``, best first."""
        wanted = [word for word in dict.fromkeys(words(query)) if word in self._known]
        if not wanted:
            return []
        scores = self._index.get_scores(wanted)
        count = min(depth, self._size)
        # every passage that ties with the last one that fits competes for its place by number
        floor = np.partition(scores, self._size - count)[self._size - count]
        rows = np.flatnonzero((scores >= floor) & (scores > 0))
        return [int(row) for row in rows[np.lexsort((rows, -scores[rows]))][:count]]

    @property
    def _known(self) -> dict[str, int]:
        return {} if self._empty else self._index.vocab_dict
