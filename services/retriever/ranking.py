"""Rankings of a pool: one, best first, or as many as a request draws."""

from __future__ import annotations

import zlib

import numpy as np

from ragcore.plackett_luce import inclusion_probabilities, log_probability, log_weights, sample_rankings
from services.retriever.domain import FloatArray, IntArray, Query, Scored


def ranked(query: Query, pool: Scored, k: int) -> tuple[int, IntArray, FloatArray | None, FloatArray | None]:
    """How much of the pool to show, the rankings of it, and their probabilities if they are drawn.

    Args:
        query: whether rankings are drawn, and what of them is wanted.
        pool: what was found.
        k: positions of a ranking; what there is may be less.

    Returns:
        The number of passages to show; rankings, indices into the pool, ``[rankings, k]``; their
        log-probabilities and each shown passage's inclusion probability, or None.
    """
    size = len(pool.rows)
    length = min(k, size)
    draw = query.draw
    if draw is None:
        shown = size if query.with_inclusion else length
        # The policy of a deterministic ranking: the first k, surely.
        inclusion = (np.arange(shown) < length).astype(np.float64) if query.with_inclusion else None
        return shown, np.arange(length)[None, :], None, inclusion
    if not size:
        nothing = np.empty(0)
        empty = np.empty((draw.num_rankings, 0), dtype=np.int64)
        return 0, empty, np.zeros(draw.num_rankings), nothing if query.with_inclusion else None
    weights = log_weights(pool.scores, draw.alpha)
    rng = np.random.default_rng([draw.seed, zlib.crc32((query.stream_id or query.text).encode())])
    rankings = sample_rankings(weights, num_rankings=draw.num_rankings, k=length, rng=rng)
    inclusion = inclusion_probabilities(weights, k=length) if query.with_inclusion else None
    return size, rankings, log_probability(weights, rankings), inclusion
