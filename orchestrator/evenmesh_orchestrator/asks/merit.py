"""The exposure that passages of a pool deserve: in proportion to relevance, near duplicates once."""

from __future__ import annotations

import numpy as np

from evenmesh.common.v1.common_pb2 import Policy
from evenmesh_core import plackett_luce
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_core.exposure_balance import merit_shares
from evenmesh_core.near_duplicates import near_duplicates
from evenmesh_orchestrator.domain import Pool


def relevance_of(pool: Pool, rows: IntArray, scores: FloatArray, *, reranked: bool) -> FloatArray:
    """Return the relevance of each passage of a pool, 0 for those without a score.

    It is the reranker's probability, or the retriever's score from 0, the last, to 1, the best.

    Args:
        pool: the pool, of n passages.
        rows: indices into it, [m].
        scores: of them, [m].
        reranked: whether a reranker scored them.
    """
    relevance = np.zeros(len(pool.passages))
    if len(rows):
        relevance[rows] = relevance_kind(scores, reranked=reranked)[0]
    return relevance


def relevance_kind(scores: FloatArray, *, reranked: bool) -> tuple[FloatArray, Policy.Relevance.ValueType]:
    """Return the relevance that scores [m] stand for, [m], and its kind.

    Where the reranker of a whole expression failed, the scores are those of its parts or of their order.
    """
    if reranked and scores.min() >= 0.0 and scores.max() <= 1.0:
        return scores, Policy.RELEVANCE_PROBABILITY
    return plackett_luce.normalize_scores(scores) - 1.0, Policy.RELEVANCE_NORMALIZED_SCORE


def merit_of(pool: Pool, relevance: FloatArray) -> FloatArray:
    """Return the share of a context that each passage deserves; see :func:`merit_shares`.

    Takes milliseconds for a hundred passages: call it in a thread.

    Args:
        pool: the pool, of n passages.
        relevance: of them, [n], from 0.
    """
    merit = np.zeros(len(relevance))
    rows = np.flatnonzero(relevance > 0)
    if len(rows):
        copies = near_duplicates([pool.passages[row].text for row in rows.tolist()])
        merit[rows] = merit_shares(relevance[rows], copies)
    return merit
