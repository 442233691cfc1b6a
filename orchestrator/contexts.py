"""Contexts, which the generator is given: cut from rankings, reordered, or sampled from scores."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from orchestrator.domain import Contexts, Passage, Sampling
from ragcore import plackett_luce
from ragcore.arrays import FloatArray, IntArray


def cut(rankings: IntArray, log_probabilities: FloatArray | None, k: int) -> Contexts:
    """The first ``k`` of each ranking."""
    return Contexts(rankings[:, :k], log_probabilities)


def reordered(
    rankings: IntArray,
    log_probabilities: FloatArray | None,
    *,
    scored: IntArray,
    scores: FloatArray,
    passages: Sequence[Passage],
    k: int,
) -> Contexts:
    """Each ranking ordered again by the reranker's scores, ties by ascending passage id, and cut at ``k``.

    Args:
        rankings: [N, depth] indices into the pool, every one of them among ``scored``.
        log_probabilities: of the rankings, [N], or None.
        scored: indices into the pool that the reranker was given, [m].
        scores: its scores of them, [m].
        passages: the pool.
        k: positions to keep.
    """
    by_score = sorted(range(len(scored)), key=lambda place: (-scores[place], passages[int(scored[place])].id))
    position = np.zeros(len(passages), dtype=np.int64)
    position[scored[by_score]] = np.arange(len(scored))
    order = np.argsort(position[rankings], axis=1)
    return Contexts(np.take_along_axis(rankings, order, axis=1)[:, :k], log_probabilities)


def sampled(scores: FloatArray, question: str, sampling: Sampling, k: int) -> Contexts:
    """Rankings of ``k`` drawn from Plackett–Luce over scores of the pool's first passages.

    The draw depends on the seed, the question and the scores alone: arrival order never matters.

    Args:
        scores: [m], of the pool's passages 0 … m-1.
        question: names the random stream.
        sampling: how, and how many.
        k: positions per ranking.
    """
    weights = plackett_luce.log_weights(scores, sampling.alpha)
    rng = np.random.default_rng([sampling.seed, zlib.crc32(question.encode())])
    rows = plackett_luce.sample_rankings(weights, num_rankings=sampling.num_rankings, k=k, rng=rng)
    return Contexts(rows, plackett_luce.log_probability(weights, rows))


def distinct(contexts: Contexts, num_answers: int) -> list[tuple[IntArray, tuple[int, ...]]]:
    """The distinct contexts among the first ``num_answers``, each with the samples that showed exactly it.

    In order of first appearance, so that sample 0 is in the first. Samples beyond ``num_answers`` are left
    out even where they showed the same context: counting those that happen to have an answer, and not the
    others, would tilt the expected utility towards frequent contexts.
    """
    samples: dict[bytes, list[int]] = {}
    for sample, row in enumerate(contexts.rows[:num_answers]):
        samples.setdefault(row.tobytes(), []).append(sample)
    return [(contexts.rows[group[0]], tuple(group)) for group in samples.values()]
