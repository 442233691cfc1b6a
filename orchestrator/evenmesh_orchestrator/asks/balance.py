"""Fairness over time: what the providers of a collection are owed, and draws that make up for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from evenmesh.common.v1 import common_pb2
from evenmesh.common.v1.common_pb2 import Passage, Policy
from evenmesh_core.arrays import FloatArray
from evenmesh_core.exposure_balance import ExposureBalance, balanced_weights
from evenmesh_core.plackett_luce import inclusion_probabilities
from evenmesh_kit.compute.tenant_cache import TenantCache
from evenmesh_kit.security import caller as callers
from evenmesh_orchestrator.asks import contexts
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, attempt
from evenmesh_orchestrator.asks.failure_policy import Step
from evenmesh_orchestrator.asks.merit import relevance_kind
from evenmesh_orchestrator.domain import Balance, Contexts, Sampling
from evenmesh_orchestrator.ports import Balances

FRESH_S: Final = 5.0
"""Age up to which a balance is used without asking again. Seconds."""
STALE_S: Final = 300.0
"""Age up to which a balance is used while the evaluator does not answer. Seconds."""
_KEPT_BYTES: Final = 64 * 2**20
"""Most of all tenants' balances, of which one may have a quarter. Bytes."""
_PROVIDER_BYTES: Final = 128
"""Memory of a provider beside its name: objects, and two numbers. Bytes."""


class BalanceReader:
    """Reads balances from the evaluator, and keeps those of the collections that each tenant used last.

    Args:
        balances: the evaluator.
        clock: monotonic seconds.
    """

    def __init__(self, balances: Balances, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._balances = balances
        self._clock = clock
        self._known: TenantCache[tuple[float, ExposureBalance]] = TenantCache(_KEPT_BYTES)

    async def read(
        self, collection: str, half_life_days: float, clock: Clock
    ) -> ExposureBalance | HandledFailure:
        """Return what the providers of a collection of the caller's tenant are owed, at most 300 s old."""
        tenant, key = callers.current().tenant, (collection, half_life_days)
        found = self._known.get(tenant, key)
        if found is not None and self._clock() - found[0] <= FRESH_S:
            return found[1]
        read_at = self._clock()
        outcome = await attempt(
            clock,
            Step.READ_BALANCE,
            lambda budget: self._balances.balance(collection, half_life_days, timeout_s=budget),
        )
        if not isinstance(outcome, HandledFailure):
            size = sum(_PROVIDER_BYTES + 2 * len(name.encode()) for name in outcome.names)
            self._known.put(tenant, key, (read_at, outcome), size)
        elif found is not None and self._clock() - found[0] <= STALE_S:
            return found[1]
        return outcome


def balanced(
    balance: Balance,
    known: ExposureBalance,
    scores: FloatArray,
    passages: Sequence[Passage],
    question: str,
    sampling: Sampling,
    k: int,
    *,
    reranked: bool,
) -> tuple[Contexts, Policy]:
    """Return rankings drawn from scores that changed by what providers are owed, and the policy.

    Args:
        balance: strength and bound of the controller.
        known: what providers are owed.
        scores: [m].
        passages: those that have the scores, m of them.
        question: names the random stream.
        sampling: fairness dial, seed and number of rankings.
        k: positions per ranking.
        reranked: whether a reranker scored them.
    """
    offsets = known.offsets(strength=balance.strength, limit=balance.limit)
    providers = [passage.attributes.get("provider", "") for passage in passages]
    moved = [offsets.get(provider, 0.0) for provider in providers]
    weights = balanced_weights(scores, moved, sampling.alpha or 0.0)
    relevance, kind = relevance_kind(scores, reranked=reranked)
    inclusion = inclusion_probabilities(weights, k=k)
    policy = Policy(
        kind=Policy.KIND_PLACKETT_LUCE,
        alpha=sampling.alpha,
        disparity=min(1.0, float(inclusion @ inclusion) / min(k, len(scores))),
        relevance=float(inclusion @ relevance),
        best_relevance=float(np.sort(relevance)[::-1][:k].sum()),
        relevance_kind=kind,
        reached=True,
        balance=common_pb2.Balance(
            strength=balance.strength, limit=balance.limit, half_life_days=balance.half_life_days
        ),
        offsets=_offsets(providers, offsets, known),
    )
    return contexts.drawn(weights, question, sampling, k), policy


def _offsets(
    providers: Sequence[str], offsets: Mapping[str, float], known: ExposureBalance
) -> list[common_pb2.BalanceOffset]:
    owed = dict(zip(known.names, known.owed.tolist(), strict=True))
    return [
        common_pb2.BalanceOffset(provider=provider, offset=offsets[provider], owed=owed[provider])
        for provider in dict.fromkeys(providers)
        if provider in offsets
    ]
