"""Passages that resemble relevant ones are more probably relevant: the cluster hypothesis (Diaz 2005)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from evenmesh_core.arrays import FloatArray, float_array
from evenmesh_core.errors import InvalidInput

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_CHARACTERS: Final = 4000
"""Characters of a text that are read, which bounds the time that a long passage takes."""
_LEAST_WEIGHT: Final = 1e-8
"""Weight that a passage has at least: below, a difference of sums is rounding."""
_DIGITS: Final = 6
"""Decimals of a resemblance that are no rounding."""
_LEAST_DEVIATION: Final = 0.01
"""Smaller differences of resemblance are not brought to 1."""
_WORD: Final = re.compile(r"\w+")


def text_vectors(texts: Sequence[str]) -> csr_array:
    """Return TF-IDF vectors of texts: (1 + log tf) · log((n + 1) / df), of length 1.

    Words are runs of letters and digits in lower case, of the first :data:`MOST_CHARACTERS` characters. Words
    that are in every text hardly count, so that what the texts were searched by does not make them alike.

    Args:
        texts: n passages, from 1.

    Returns:
        Sparse matrix [n, words]; the row of a text without words is 0.

    Raises:
        InvalidInput: there are no texts.
    """
    if not texts:
        raise InvalidInput("texts", texts, "at least one element")
    counts = [Counter(_WORD.findall(text[:MOST_CHARACTERS].lower())) for text in texts]
    found = Counter(word for one in counts for word in one)
    column = {word: at for at, word in enumerate(found)}
    rarity = np.log((len(texts) + 1) / np.array(list(found.values()), dtype=np.float64))
    columns = np.array([column[word] for one in counts for word in one], dtype=np.int64)
    often = np.array([many for one in counts for many in one.values()], dtype=np.float64)
    ends = np.cumsum([0, *map(len, counts)])
    values = (1.0 + np.log(often)) * rarity[columns]
    squares = np.concatenate([[0.0], np.cumsum(values**2)])
    lengths = np.sqrt(squares[ends[1:]] - squares[ends[:-1]])
    values /= np.repeat(np.where(lengths > 0.0, lengths, 1.0), np.diff(ends))
    from scipy.sparse import csr_array  # a sixth of a second to import

    return csr_array((values, columns, ends), shape=(len(texts), len(found)))


def support(log_odds: FloatArray, vectors: csr_array) -> FloatArray:
    """Return how much each passage resembles the other probable ones, beside the mean of all.

    With the weights w = softmax(log-odds), s_i = Σ_{j≠i} w_j · cos(i, j) / Σ_{j≠i} w_j, in [0, 1]; the result
    is (s_i − mean) / max(standard deviation, 0.01). It takes time in the number of words, not of pairs.

    Args:
        log_odds: of each passage being relevant, vector [n], n from 1.
        vectors: of the passages, of length 1 or 0 and without negative numbers, [n, any]; see
            :func:`text_vectors`.

    Returns:
        Vector [n] with the mean 0; all 0 where all resemble the others alike, as one or two passages do.

    Source: after Diaz 2005, who regularizes scores so that similar documents get similar ones.

    Raises:
        InvalidInput: a number that is not finite, or another number of vectors.
    """
    odds = float_array("log_odds", log_odds)
    if vectors.shape[0] != len(odds):
        raise InvalidInput("vectors", vectors.shape[0], f"{len(odds)} rows, one for each of log_odds")
    weights = np.exp(odds - odds.max()).clip(_LEAST_WEIGHT)
    own = np.asarray(vectors.power(2).sum(axis=1), dtype=np.float64).reshape(-1)
    alike = vectors @ (vectors.T @ weights) - own * weights
    others = (weights.sum() - weights).clip(_LEAST_WEIGHT)
    resembled = (alike / others).clip(0.0, 1.0).round(_DIGITS)
    brought: FloatArray = (resembled - resembled.mean()) / max(float(resembled.std()), _LEAST_DEVIATION)
    return brought
