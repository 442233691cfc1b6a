"""Contexts for the generator: cut from rankings, reordered, or sampled from scores."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest
from typing import Final

import numpy as np

from evenmesh.common.v1.common_pb2 import Passage, Policy
from evenmesh_core import group_shares, plackett_luce
from evenmesh_core.arrays import FloatArray, IntArray
from evenmesh_kit.rpc.policies import GroupSharesPolicy, Target, find_policy, policy_message
from evenmesh_orchestrator.asks.merit import relevance_kind
from evenmesh_orchestrator.domain import Ask, Contexts, Sampling

BATCH_BYTES: Final = 4 * 2**20
"""Most bytes of the prompts that are answered in one call, unless one alone has more: the generator takes
16 MiB, and the prompts of a call are copied several times. Bytes."""


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

    Raises:
        ValueError: the dial of a target is not found yet.
    """
    if sampling.alpha is None:
        raise ValueError("sampling has no alpha: find that of its target first")
    return drawn(plackett_luce.log_weights(scores, sampling.alpha), question, sampling, k)


def drawn(weights: FloatArray, question: str, sampling: Sampling, k: int) -> Contexts:
    """Return rankings of ``k`` positions drawn with log-weights [m]; see :func:`sampled`."""
    rng = _generator(question, sampling)
    return Contexts(*plackett_luce.draw_rankings(weights, num_rankings=sampling.num_rankings, k=k, rng=rng))


def sampled_to(
    target: Target,
    scores: FloatArray,
    passages: Sequence[Passage],
    question: str,
    sampling: Sampling,
    k: int,
    *,
    reranked: bool,
) -> tuple[Contexts, Policy]:
    """Return rankings drawn from the policy that reaches a target, and the policy.

    Args:
        target: what to reach.
        scores: [m].
        passages: those that have the scores, m of them.
        question: names the random stream.
        sampling: seed and number of rankings.
        k: positions per ranking.
        reranked: whether a reranker took part: its scores are probabilities, and taken as relevance.

    Raises:
        InvalidField: bounds of the target have too many groups among these passages.
    """
    relevance, kind = relevance_kind(scores, reranked=reranked)
    found = find_policy(target, scores, relevance, lambda: [one.attributes for one in passages], k=k)
    if isinstance(found, GroupSharesPolicy):
        rng = _generator(question, sampling)
        drawn = Contexts(*group_shares.draw(found.policy, num_rankings=sampling.num_rankings, rng=rng))
    else:
        drawn = sampled(scores, question, replace(sampling, alpha=found.alpha), k)
    return drawn, policy_message(found, kind)


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


def batch_size(ask: Ask, passages: Sequence[Passage], k: int, most: int) -> int:
    """Return how many contexts of ``k`` of these passages one call answers, [1, most].

    Each context is sent with the question and the earlier turns.
    """
    largest = ask.prompt(()).ByteSize() + sum(nlargest(k, (one.ByteSize() for one in passages)))
    return max(1, min(most, BATCH_BYTES // max(1, largest)))


def _generator(question: str, sampling: Sampling) -> np.random.Generator:
    return np.random.default_rng([sampling.seed, zlib.crc32(question.encode())])
