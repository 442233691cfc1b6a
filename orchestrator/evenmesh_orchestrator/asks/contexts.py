"""Contexts for the generator: cut from rankings, reordered, or sampled from scores."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from evenmesh.common.v1.common_pb2 import Passage
from evenmesh_core import plackett_luce
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_orchestrator.domain import Contexts, Sampling


def cut(contexts: Contexts, k: int) -> Contexts:
    """Return the first ``k`` positions of each ranking."""
    return Contexts(contexts.rows[:, :k], contexts.log_probabilities)


def best_first(rows: IntArray, scores: FloatArray, passages: Sequence[Passage]) -> IntArray:
    """Return the positions of ``rows`` by descending score, ties by ascending passage id.

    Args:
        rows: indices into the pool, [m].
        scores: their scores, [m].
        passages: the pool.
    """
    order = sorted(range(len(rows)), key=lambda place: (-scores[place], passages[int(rows[place])].id))
    return np.array(order, dtype=np.int64)


def reordered(
    rankings: Contexts, *, scored: IntArray, scores: FloatArray, passages: Sequence[Passage], k: int
) -> Contexts:
    """Return each ranking in the order of the reranker's scores (see :func:`best_first`), cut at ``k``.

    Args:
        rankings: [N, depth] indices into the pool, all of them in ``scored``.
        scored: indices into the pool that the reranker scored, [m].
        scores: its scores of them, [m].
        passages: the pool.
        k: positions to keep.
    """
    position = np.zeros(len(passages), dtype=np.int64)
    position[scored[best_first(scored, scores, passages)]] = np.arange(len(scored))
    order = np.argsort(position[rankings.rows], axis=1)
    return cut(Contexts(np.take_along_axis(rankings.rows, order, axis=1), rankings.log_probabilities), k)


def sampled(scores: FloatArray, question: str, sampling: Sampling, k: int) -> Contexts:
    """Return rankings of ``k`` positions drawn from Plackett–Luce over scores of passages 0 … m-1.

    The draw depends only on the seed, the question and the scores: arrival order never matters.

    Args:
        scores: [m].
        question: names the random stream.
        sampling: fairness dial, seed and number of rankings.
        k: positions per ranking.
    """
    weights = plackett_luce.log_weights(scores, sampling.alpha)
    rng = np.random.default_rng([sampling.seed, zlib.crc32(question.encode())])
    rows = plackett_luce.sample_rankings(weights, num_rankings=sampling.num_rankings, k=k, rng=rng)
    return Contexts(rows, plackett_luce.log_probability(weights, rows))


def distinct(contexts: Contexts, num_answers: int) -> list[tuple[IntArray, tuple[int, ...]]]:
    """Return the distinct contexts among the first ``num_answers``, each with the samples that showed it.

    They come in order of first appearance, so that sample 0 is in the first. Samples beyond ``num_answers``
    are left out even where they showed the same context: counting those that happen to have an answer, and
    not the others, would tilt the expected utility towards frequent contexts.
    """
    samples: dict[bytes, list[int]] = {}
    for sample, row in enumerate(contexts.rows[:num_answers]):
        samples.setdefault(row.tobytes(), []).append(sample)
    return [(contexts.rows[group[0]], tuple(group)) for group in samples.values()]
