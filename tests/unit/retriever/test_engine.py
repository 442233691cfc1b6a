"""From a query to rankings: pools, defaults, draws."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import grpc
import numpy as np
import pytest
from scipy import stats

from evenmesh.wire.errors import InvalidField, MeshError, NotFound, Overloaded
from evenmesh_core.plackett_luce import Disparity, RelevanceLoss, log_probability, log_weights
from evenmesh_kit.compute.executors import ComputePool
from evenmesh_kit.rpc.policies import GroupShare, GroupShares, GroupSharesPolicy, Target
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import DEFAULT_TENANT, Caller
from evenmesh_retriever import cost
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.catalogue import RetrieverCatalogue
from evenmesh_retriever.domain import (
    AnyOf,
    Condition,
    Draw,
    Filter,
    Lexical,
    NumberRange,
    Passage,
    Query,
    RetrieverInfo,
    Scored,
)
from evenmesh_retriever.engine import RetrieverEngine
from evenmesh_retriever.query_admission import QueryAdmission
from evenmesh_retriever.settings import RetrieverSettings
from evenmesh_retriever.steps import Steps

# "fox" is in all of them, ever more diluted, so that scores differ and ids run the other way.
PASSAGES = [Passage(f"p{number:02}", "", "fox" + " word" * (20 - number)) for number in range(20)]
BEST = [f"p{number:02}" for number in range(19, -1, -1)]
QUERY = Query("fox", "c", None, "", None, None, None, with_inclusion=False, stream_id="")
INLINE = dataclasses.replace(QUERY, collection="", candidates=PASSAGES[::-1])
DRAW = Draw(alpha=1.0, num_rankings=50, seed=3)


def admission(capacity: int) -> QueryAdmission:
    return QueryAdmission(capacity, setting="EVENMESH_X")


@pytest.fixture
async def engine(open_store) -> AsyncIterator[RetrieverEngine]:
    catalogue = RetrieverCatalogue(RetrieverSettings(encoder=""), analyzer, None)
    store = await open_store(prepare=catalogue.prepare)
    mine = store.of(DEFAULT_TENANT)
    await mine.ingest("c", PASSAGES, create=True)
    await mine.create("empty", "", Lexical())
    pool = ComputePool(2, "test")
    yield RetrieverEngine(store, catalogue.retrievers, catalogue.default, pool, admission(2**18))
    pool.close()


def ids(passages: object) -> list[str]:
    assert isinstance(passages, list)
    return [passage.id for passage in passages]


@pytest.mark.parametrize("query", [QUERY, INLINE], ids=["collection", "candidates"])
async def test_deterministic(engine: RetrieverEngine, query: Query) -> None:
    answer = await engine.retrieve(query)
    assert ids(answer.passages) == BEST[:5]  # the default k, and no more than that
    assert answer.rankings.tolist() == [[0, 1, 2, 3, 4]]
    assert answer.scores.tolist() == sorted(answer.scores.tolist(), reverse=True)
    assert answer.log_probabilities is None
    assert answer.inclusion is None
    assert answer.retriever == "bm25-lucene"  # the default without an encoder
    assert answer.version.startswith("000001-") == (query is QUERY)


@pytest.mark.parametrize("query", [QUERY, INLINE], ids=["collection", "candidates"])
async def test_sampled_over_the_whole_pool(engine: RetrieverEngine, query: Query) -> None:
    answer = await engine.retrieve(dataclasses.replace(query, depth=8, k=3, draw=DRAW, with_inclusion=True))
    assert ids(answer.passages) == BEST[:8]
    assert answer.rankings.shape == (50, 3)
    assert all(len(set(ranking)) == 3 for ranking in answer.rankings.tolist())
    assert answer.log_probabilities is not None
    assert (answer.log_probabilities <= 0).all()
    assert answer.inclusion is not None
    assert answer.inclusion.sum() == pytest.approx(3, abs=1e-6)
    assert answer.inclusion.tolist() == sorted(answer.inclusion.tolist(), reverse=True)


@pytest.mark.parametrize("query", [QUERY, INLINE], ids=["collection", "candidates"])
@pytest.mark.parametrize("target", [Disparity(0.4), RelevanceLoss(0.1)])
async def test_a_target_chooses_the_dial_for_the_query(
    engine: RetrieverEngine, query: Query, target: Target
) -> None:
    draw = dataclasses.replace(DRAW, target=target)
    asked = dataclasses.replace(query, depth=15, k=4, draw=draw, with_inclusion=True)
    answer = await engine.retrieve(asked)
    policy, inclusion = answer.policy, answer.inclusion
    assert policy is not None
    assert inclusion is not None
    assert policy.reached
    gains = (answer.scores - answer.scores[-1]) / (answer.scores[0] - answer.scores[-1])
    assert policy.best_relevance == pytest.approx(gains[:4].sum())
    assert policy.relevance == pytest.approx(inclusion @ gains)
    if isinstance(target, Disparity):
        assert inclusion @ inclusion / 4 == pytest.approx(0.4, abs=1e-3)
    else:
        assert inclusion @ gains == pytest.approx(0.9 * policy.best_relevance, rel=1e-3)
    dial = dataclasses.replace(DRAW, alpha=policy.alpha)
    same = await engine.retrieve(dataclasses.replace(asked, draw=dial))
    assert same.rankings.tolist() == answer.rankings.tolist()
    assert same.policy is None
    assert same.inclusion is not None
    np.testing.assert_allclose(same.inclusion, inclusion, atol=1e-9)


@pytest.mark.parametrize("collection", [True, False])
async def test_shares_are_kept_by_the_attributes_of_the_pool(
    engine: RetrieverEngine, collection: bool
) -> None:
    passages = [
        dataclasses.replace(one, attributes={"provider": "A" if place >= 10 else "B"})
        for place, one in enumerate(PASSAGES)
    ]
    query = dataclasses.replace(INLINE, candidates=passages)
    if collection:
        await engine._store.of(DEFAULT_TENANT).ingest("of-two", passages, create=True)
        query = dataclasses.replace(QUERY, collection="of-two")
    target = GroupShares((GroupShare("provider", "", at_most=0.7),))
    draw = dataclasses.replace(DRAW, num_rankings=1000, target=target)
    answer = await engine.retrieve(dataclasses.replace(query, depth=20, k=4, draw=draw, with_inclusion=True))
    assert isinstance(answer.policy, GroupSharesPolicy)
    assert answer.inclusion is not None
    of_a = np.array([one.attributes["provider"] == "A" for one in answer.passages])
    assert answer.inclusion[of_a].sum() == pytest.approx(2.8)
    shown = of_a[answer.rankings].mean()
    assert shown == pytest.approx(0.7, abs=0.05)
    assert answer.log_probabilities is not None
    probabilities = np.exp(answer.log_probabilities)
    assert set(np.round(probabilities, 6)) == {0.2, 0.8}


async def test_a_target_of_nothing_has_no_policy(engine: RetrieverEngine) -> None:
    draw = dataclasses.replace(DRAW, target=Disparity(0.4))
    answer = await engine.retrieve(dataclasses.replace(QUERY, collection="empty", draw=draw))
    assert answer.policy is None
    assert answer.rankings.shape == (50, 0)


async def test_a_draw_is_named_by_seed_and_stream(engine: RetrieverEngine) -> None:
    async def draw(**changes: object) -> list[list[int]]:
        query = dataclasses.replace(QUERY, **{"draw": DRAW, **changes})
        return (await engine.retrieve(query)).rankings.tolist()

    plain = await draw()
    assert await draw() == plain
    assert await draw(stream_id="fox") == plain  # the query is the default name
    assert await draw(stream_id="other") != plain
    assert await draw(draw=dataclasses.replace(DRAW, seed=4)) != plain
    # The first rankings do not depend on how many follow.
    assert (await draw(draw=dataclasses.replace(DRAW, num_rankings=10))) == plain[:10]


WHOLE = dataclasses.replace(QUERY, draw=DRAW, whole=True)


async def test_a_whole_collection_is_drawn_from_as_a_pool_of_all_of_it(engine: RetrieverEngine) -> None:
    draw = Draw(alpha=2.0, num_rankings=1000, seed=1)
    asked = {"k": 2, "draw": draw, "with_inclusion": True}
    pool = await engine.retrieve(dataclasses.replace(QUERY, depth=1000, **asked))
    whole = await engine.retrieve(dataclasses.replace(WHOLE, **asked))
    assert whole.inclusion is not None
    assert pool.inclusion is not None
    assert whole.log_probabilities is not None

    # All 20 are drawn at some time, so that both show the same passages.
    assert ids(whole.passages) == ids(pool.passages)
    np.testing.assert_array_equal(whole.scores, pool.scores)
    np.testing.assert_allclose(whole.inclusion, pool.inclusion, atol=1e-12)
    policy = log_weights(pool.scores, 2.0)
    np.testing.assert_allclose(whole.log_probabilities, log_probability(policy, whole.rankings), rtol=1e-12)
    times = np.bincount(whole.rankings.ravel(), minlength=20)
    assert stats.chisquare(times, pool.inclusion * 1000).pvalue > 1e-4


async def test_a_draw_from_a_whole_collection_is_named_by_seed_and_stream(engine: RetrieverEngine) -> None:
    async def drawn(**changes: object) -> list[list[str]]:
        answer = await engine.retrieve(dataclasses.replace(WHOLE, **changes))
        return [[answer.passages[one].id for one in ranking] for ranking in answer.rankings.tolist()]

    plain = await drawn()
    assert await drawn() == plain
    assert await drawn(stream_id="other") != plain
    assert await drawn(draw=dataclasses.replace(DRAW, seed=4)) != plain
    assert await drawn(draw=dataclasses.replace(DRAW, num_rankings=10)) == plain[:10]


async def test_only_what_was_drawn_from_a_whole_collection_is_shown(engine: RetrieverEngine) -> None:
    answer = await engine.retrieve(dataclasses.replace(WHOLE, k=2, draw=Draw(1.0, 3, 0), with_inclusion=True))
    assert sorted(set(answer.rankings.ravel().tolist())) == list(range(len(answer.passages)))
    assert len(answer.passages) == len(answer.scores) <= 6
    assert answer.scores.tolist() == sorted(answer.scores.tolist(), reverse=True)
    assert answer.inclusion is not None
    assert 0 < answer.inclusion.sum() < 2  # what was not drawn has the rest


async def test_a_whole_collection_may_have_less_than_k(engine: RetrieverEngine) -> None:
    answer = await engine.retrieve(dataclasses.replace(WHOLE, k=900, draw=Draw(1.0, 2, 0)))
    assert answer.rankings.shape == (2, 20)


async def test_alpha_is_the_fairness_dial(engine: RetrieverEngine) -> None:
    async def times_on_top(alpha: float) -> Counter[int]:
        draw = Draw(alpha=alpha, num_rankings=1000, seed=1)
        answer = await engine.retrieve(dataclasses.replace(QUERY, k=1, draw=draw))
        return Counter(answer.rankings[:, 0].tolist())

    uniform, sharp = await times_on_top(0), await times_on_top(8)
    assert max(uniform.values()) < 1000 / 20 * 2
    assert sharp[0] > 900


async def test_inclusion_of_a_deterministic_ranking_is_certain(engine: RetrieverEngine) -> None:
    answer = await engine.retrieve(dataclasses.replace(QUERY, depth=6, k=2, with_inclusion=True))
    assert ids(answer.passages) == BEST[:6]
    assert answer.rankings.tolist() == [[0, 1]]
    assert answer.inclusion is not None
    assert answer.inclusion.tolist() == [1, 1, 0, 0, 0, 0]


async def test_a_pool_may_be_smaller_than_asked_for(engine: RetrieverEngine) -> None:
    answer = await engine.retrieve(dataclasses.replace(QUERY, depth=1000, k=900))
    assert len(answer.passages) == 20
    assert answer.rankings.shape == (1, 20)


@pytest.mark.parametrize(
    "query", [QUERY, dataclasses.replace(QUERY, draw=DRAW), WHOLE], ids=["one", "sampled", "whole"]
)
async def test_an_empty_collection_gives_empty_rankings(engine: RetrieverEngine, query: Query) -> None:
    answer = await engine.retrieve(dataclasses.replace(query, collection="empty", with_inclusion=True))
    assert len(answer.passages) == len(answer.scores) == 0
    assert answer.rankings.shape == (1 if query.draw is None else 50, 0)
    assert answer.inclusion is not None
    assert answer.inclusion.shape == (0,)


@pytest.mark.parametrize(
    ("error", "field", "query"),
    [
        (NotFound, "retriever", dataclasses.replace(QUERY, retriever="splade")),
        (NotFound, "collection", dataclasses.replace(QUERY, collection="x")),
        (InvalidField, "k", dataclasses.replace(QUERY, depth=3, k=4)),
        (InvalidField, "k", dataclasses.replace(QUERY, k=101)),
        (InvalidField, "k", dataclasses.replace(INLINE, k=21)),
        (InvalidField, "k", dataclasses.replace(INLINE, depth=100, k=21)),
    ],
)
async def test_refusals_name_the_field(
    engine: RetrieverEngine, error: type[InvalidField | NotFound], field: str, query: Query
) -> None:
    with pytest.raises(error) as refused:
        await engine.retrieve(query)
    assert refused.value.field == field


async def test_an_unknown_retriever_names_the_known_ones(engine: RetrieverEngine) -> None:
    with pytest.raises(NotFound, match=r"this server has bm25-lucene, bm25, bm25-plus, bm25-l$"):
        await engine.retrieve(dataclasses.replace(QUERY, retriever="splade"))


async def test_work_is_admitted_before_it_begins(engine: RetrieverEngine) -> None:
    engine._admission = admission(400)
    running = engine._admission.admission
    long = [dataclasses.replace(passage, text=passage.text + " word" * 40) for passage in PASSAGES]
    inline = dataclasses.replace(INLINE, candidates=long)  # 20 × 250 bytes: 19 tokens of work and the query
    with running.admit(390):
        await engine.retrieve(QUERY)
        with pytest.raises(Overloaded, match="busy: 20 tokens do not fit now"):
            await engine.retrieve(inline)
    assert running.in_flight == 0
    assert np.isfinite((await engine.retrieve(inline)).scores).all()


async def test_conditions_of_a_filter_count(engine: RetrieverEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "_FILTERED", 5)
    engine._admission = admission(400)
    conditions = [Condition("year", NumberRange(float(low), None)) for low in range(2)]
    with (
        engine._admission.admission.admit(395),
        pytest.raises(
            Overloaded, match="busy: 9 tokens do not fit now"
        ),  # 2 × 20 passages / 5, and the query
    ):
        await engine.retrieve(dataclasses.replace(QUERY, filter=Filter(tuple(conditions))))


async def test_a_filter_of_too_many_values_is_refused_by_its_field(engine: RetrieverEngine) -> None:
    mine = engine._store.of(DEFAULT_TENANT)
    passages = [Passage(f"p{number}", "", "fox", {"year": str(number)}) for number in range(1000)]
    await mine.ingest("c", passages, create=False)
    where = Filter(tuple(Condition("year", AnyOf(frozenset(map(str, range(500))))) for _ in range(16)))
    query = dataclasses.replace(QUERY, filter=where)
    assert len((await engine.retrieve(query)).passages) == 5
    engine._admission = admission(400)
    with pytest.raises(MeshError, match="may ask for 20: name fewer values") as refused:
        await engine.retrieve(query)
    assert (refused.value.reason, refused.value.field) == ("REQUEST_TOO_LARGE", "filter.conditions")


async def test_a_tenant_leaves_half_of_the_work_to_others(engine: RetrieverEngine) -> None:
    engine._admission = admission(400)
    async with engine._admission.admit(195):
        long = [Passage(f"p{number}", "", "fox " * 512) for number in range(2)]
        query = dataclasses.replace(INLINE, candidates=long)
        with pytest.raises(Overloaded, match="holds 195 of its 200 tokens of work, 17 more"):
            await engine.retrieve(query)
        callers.enter(Caller("other", "other", frozenset()))
        assert len((await engine.retrieve(query)).passages) == 2


async def test_candidates_of_too_much_work_are_refused_with_what_fits(engine: RetrieverEngine) -> None:
    engine._admission = admission(400)
    long = [Passage(f"p{number}", "", "fox " * 160) for number in range(9)]
    query = dataclasses.replace(INLINE, candidates=long)
    with pytest.raises(MeshError, match="may ask for 20: about 7 of these 9 passages fit") as refused:
        await engine.retrieve(query)
    assert refused.value.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (refused.value.reason, refused.value.field) == ("REQUEST_TOO_LARGE", "candidates.passages")
    assert "EVENMESH_X" in refused.value.message
    assert refused.value.retry_after_s is None  # it never fits
    assert len((await engine.retrieve(dataclasses.replace(query, candidates=long[:7]))).passages) == 5
    assert engine._admission.admission.in_flight == 0


@pytest.mark.parametrize("query", [QUERY, INLINE], ids=["collection", "candidates"])
async def test_products_of_rankings_and_positions_are_bounded(engine: RetrieverEngine, query: Query) -> None:
    drawn = dataclasses.replace(query, depth=20, k=20, draw=Draw(alpha=1.0, num_rankings=1000, seed=1))
    assert len((await engine.retrieve(drawn)).rankings) == 1000  # 15 tokens of work, and 20 may be
    engine._admission = admission(200)
    with pytest.raises(MeshError, match="may ask for 10: draw fewer or shorter rankings") as refused:
        await engine.retrieve(drawn)
    assert refused.value.field == "sampling.num_rankings"


async def test_a_cancelled_query_ends_between_two_steps(engine: RetrieverEngine) -> None:
    class Slow:
        """Ranks in a thousand steps."""

        info = RetrieverInfo("slow", "", "", "", "")

        def __init__(self) -> None:
            self.steps = 0

        def work(self, sizes: Sequence[int]) -> int:
            return 1

        def rank(self, passages: Sequence[Passage], query: str) -> Steps[Scored]:
            for _ in range(1000):
                self.steps += 1
                yield 0
            raise AssertionError("nobody waits for it")

    slow = Slow()
    engine._retrievers = {"slow": slow}
    task = asyncio.create_task(engine.retrieve(dataclasses.replace(INLINE, retriever="slow")))
    while not slow.steps:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    after = slow.steps
    await engine._pool.run(lambda: None)
    await engine._pool.run(lambda: None)
    assert slow.steps <= after + 1 < 1000
    assert engine._admission.admission.in_flight == 0


async def test_the_default_is_listed_first(engine: RetrieverEngine) -> None:
    assert [(info.name, is_default) for info, is_default in engine.list()] == [
        ("bm25-lucene", True),
        ("bm25", False),
        ("bm25-plus", False),
        ("bm25-l", False),
    ]
