"""Fairness over time: asks whose scores change by what providers are owed."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from evenmesh.common.v1 import common_pb2
from evenmesh.evaluator.v1 import evaluator_service_pb2 as evaluator_pb
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import InvalidField, MeshError, Unavailable
from evenmesh_core.exposure_balance import ExposureBalance
from evenmesh_core.plackett_luce import inclusion_probabilities
from evenmesh_kit.rpc.policies import policy_in_words
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller, Role
from evenmesh_orchestrator import codec
from evenmesh_orchestrator.asks.balance import FRESH_S, STALE_S, BalanceReader
from evenmesh_orchestrator.asks.budgets import Clock, HandledFailure, PipelineConfig
from evenmesh_orchestrator.asks.merit import merit_of, relevance_of
from evenmesh_orchestrator.domain import Degraded, Pool, Ranked
from tests.unit.orchestrator.fakes import FakeBalances, Mesh, ask, passage

OWED = ExposureBalance().added(["B", "A", "Z"], [6.0, 0.0, 1.0], [0.0, 2.0, 0.0])
BALANCE: dict[str, Any] = {"strength": 0.1, "limit": 0.4, "half_life_days": 7}


def _asked(**changes: Any) -> Any:
    sampling = {"num_rankings": 40, "alpha": 4.0, "seed": 0, "balance": BALANCE}
    return ask(**({"reranker": "rankrag", "k": 1, "rerank_depth": 3, "sampling": sampling} | changes))


@pytest.fixture
def provided(mesh: Mesh) -> Mesh:
    """A mesh in which A's passage is the best, B's is good and C's is not."""
    mesh.retriever.passages = [passage(name, f"says {name}", provider=name.upper()) for name in "abc"]
    mesh.reranker.scores = {"a": 0.8, "b": 0.6, "c": 0.0}
    mesh.balances = FakeBalances(OWED)
    return mesh


async def test_what_providers_are_owed_changes_what_is_drawn_and_the_reply_says_so(provided: Mesh) -> None:
    events = await provided.run(_asked())
    (ranked,) = [event for event in events if isinstance(event, Ranked)]
    policy = ranked.policy
    assert policy is not None
    # Scores 0.8, 0.6, 0 are 2, 1.75, 1: A owes 2 contexts, which takes 0.2; B is owed 6, of which 0.4 counts.
    assert [(one.provider, one.offset, one.owed) for one in policy.offsets] == [
        ("A", pytest.approx(-0.2), -2.0),
        ("B", 0.4, 6.0),
    ]
    assert (policy.balance.strength, policy.balance.limit, policy.balance.half_life_days) == (0.1, 0.4, 7)
    assert (policy.alpha, policy.reached, policy.kind) == (4.0, True, common_pb2.Policy.KIND_PLACKETT_LUCE)
    inclusion = inclusion_probabilities(np.array([1.8, 2.15, 1.0]) ** 4, k=1)
    assert policy.disparity == pytest.approx(float(inclusion @ inclusion))
    assert policy.relevance == pytest.approx(float(inclusion @ [0.8, 0.6, 0.0]))
    assert policy.best_relevance == pytest.approx(0.8)
    drawn = np.bincount(ranked.contexts.rows.ravel(), minlength=3)
    assert drawn[1] > drawn[0]
    assert provided.balances is not None
    assert provided.balances.asked == [("default", "demo", 7.0)]
    # Merit is that of the reranker's scores, whatever was owed.
    (posted,) = provided.observer.posted
    np.testing.assert_allclose(posted.merit, [0.8 / 1.4, 0.6 / 1.4, 0.0])
    message = evaluator_pb.Observation.FromString(codec.observation(posted, with_text=True))
    assert policy_in_words("policy", message.policy) == "alpha 4, balance 0.1 up to 0.4 over 7 days"


async def test_nothing_owed_draws_what_is_drawn_without(provided: Mesh) -> None:
    provided.balances = FakeBalances()
    plain = await provided.run(_asked(sampling={"num_rankings": 40, "alpha": 4.0, "seed": 0}))
    zero = await provided.run(_asked())
    first, second = (next(one for one in events if isinstance(one, Ranked)) for events in (plain, zero))
    np.testing.assert_array_equal(first.contexts.rows, second.contexts.rows)
    assert first.policy is None
    assert second.policy is not None
    assert not second.policy.offsets


async def test_while_the_evaluator_is_away_rankings_are_drawn_without_and_the_reply_says_so(
    provided: Mesh,
) -> None:
    plain = await provided.run(_asked(sampling={"num_rankings": 40, "alpha": 4.0, "seed": 0}))
    provided.balances = FakeBalances(error=Unavailable("UPSTREAM_UNAVAILABLE", "the evaluator is away"))
    events = await provided.run(_asked())
    (degraded,) = [event for event in events if isinstance(event, Degraded)]
    assert (degraded.action, degraded.reason) == ("no-balance", "UPSTREAM_UNAVAILABLE")
    first, second = (next(one for one in found if isinstance(one, Ranked)) for found in (plain, events))
    np.testing.assert_array_equal(first.contexts.rows, second.contexts.rows)
    assert second.policy is None


async def test_a_balance_is_asked_for_again_when_it_is_old_and_is_kept_while_nobody_answers() -> None:
    now = 0.0
    upstream = FakeBalances(OWED)
    reader = BalanceReader(upstream, clock=lambda: now)
    clock = Clock(Deadline.after(60), PipelineConfig({}, 0.05, 1, 1, 0.0))

    async def owed() -> ExposureBalance | HandledFailure:
        return await reader.read("zoo", 30.0, clock)

    assert await owed() is OWED
    now = FRESH_S
    assert await owed() is OWED
    assert len(upstream.asked) == 1
    now = FRESH_S + 1
    upstream.error = MeshError(Unavailable("X", "x").code, "X", "away")
    assert await owed() is OWED
    assert len(upstream.asked) == 2
    now = STALE_S + 1
    assert isinstance(await owed(), HandledFailure)


async def test_tenants_and_collections_have_balances_of_their_own() -> None:
    upstream = FakeBalances(OWED)
    reader = BalanceReader(upstream)
    clock = Clock(Deadline.after(60), PipelineConfig({}, 0.05, 1, 1, 0.0))

    async def read(tenant: str, collection: str) -> None:
        callers.enter(Caller("c", tenant, frozenset({Role.ASK})))
        await reader.read(collection, 30.0, clock)

    for tenant, collection in (("a", "zoo"), ("b", "zoo"), ("a", "lab"), ("a", "zoo")):
        await asyncio.create_task(read(tenant, collection))
    assert [one[:2] for one in upstream.asked] == [("a", "zoo"), ("b", "zoo"), ("a", "lab")]


async def test_one_tenants_balances_take_no_others_place_and_a_bounded_memory() -> None:
    many = ExposureBalance(["x" * 1000 + str(at) for at in range(1000)], np.zeros(1000), np.zeros(1000))
    upstream = FakeBalances(many)
    reader = BalanceReader(upstream, clock=lambda: 0.0)
    clock = Clock(Deadline.after(60), PipelineConfig({}, 0.05, 1, 1, 0.0))

    async def read(tenant: str, half_life_days: float) -> None:
        callers.enter(Caller("c", tenant, frozenset({Role.ASK})))
        await reader.read("zoo", half_life_days, clock)

    await asyncio.create_task(read("victim", 30.0))
    for at in range(300):
        await asyncio.create_task(read("attacker", 1.0 + at))
    assert reader._known.size < 64 * 2**20
    asked = len(upstream.asked)
    await asyncio.create_task(read("victim", 30.0))
    assert len(upstream.asked) == asked


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sampling": {"disparity": 0.5, "balance": BALANCE}}, "sampling.balance"),
        ({"sampling": {"balance": BALANCE}, "reranker": "none"}, "sampling.balance"),
        ({"sampling": {"balance": BALANCE | {"strength": 11}}}, "sampling.balance.strength"),
        ({"sampling": {"balance": BALANCE | {"limit": 1.5}}}, "sampling.balance.limit"),
        ({"sampling": {"balance": BALANCE | {"half_life_days": 0}}}, "sampling.balance.half_life_days"),
        (
            {
                "sampling": {"balance": BALANCE},
                "candidates": {"passages": [passage("a"), passage("b"), passage("c")]},
            },
            "sampling.balance",
        ),
    ],
)
def test_a_balance_out_of_place_or_range_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        _asked(**changes)
    assert caught.value.field == field


def test_the_defaults_are_those_of_the_contract() -> None:
    found = _asked(sampling={"balance": {}}).sampling.balance
    assert (found.strength, found.limit, found.half_life_days) == (0.05, 0.25, 30.0)


def test_copies_in_a_pool_deserve_one_share() -> None:
    texts = ["the otter holds hands while it sleeps"] * 3 + ["rivers run to the sea at night"]
    passages = [passage(f"p{number}", text) for number, text in enumerate(texts)]
    scores = np.array([0.6, 0.6, 0.5, 0.6])
    pool = Pool(passages, scores, np.arange(4)[None, :], None, "bm25", "1")
    relevance = relevance_of(pool, np.array([0, 1, 2, 3]), scores, reranked=True)
    np.testing.assert_allclose(merit_of(pool, relevance), [0.5, 0.0, 0.0, 0.5])
    # Without a reranker the scores count from 0, the last, to 1; what was not scored deserves nothing.
    relevance = relevance_of(pool, np.array([2, 3]), np.array([1.0, 5.0]), reranked=False)
    np.testing.assert_allclose(merit_of(pool, relevance), [0.0, 0.0, 0.0, 1.0])
