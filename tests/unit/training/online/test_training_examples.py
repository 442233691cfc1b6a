"""What is read of an agent's feedback, and what is held back of it."""

from __future__ import annotations

from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.feedback.domain import Feedback
from evenmesh_training.ium.result_cache import Candidates
from evenmesh_training.online.training_examples import (
    MOST_RANKED,
    QueryFeedback,
    TrainingExample,
    divided,
    held_out_for,
    load_feedback,
    split,
    training_examples,
    with_candidates,
)
from tests.support.online_world import COLLECTION, World, likes

ANN = Agent("qa", "ann")


async def test_all_of_an_agents_feedback_is_read_by_query(world: World) -> None:
    await world.says(Agent("qa", "bob"), likes("water"), range(3))
    await world.says(ANN, likes("water"), range(200))  # more than a page
    again = Feedback("again", world.stream.query(0), "p0", ANN, 0.25, collection=COLLECTION)
    await world.store.record([again])
    history = await load_feedback(world.store, ANN, most_items=10**6)
    assert [one.query for one in history.queries] == [world.stream.query(one) for one in range(200)]
    assert (history.upto, history.left_out) == (await world.store.latest(), 0)
    assert history.queries[0].usefulness["p0"] == 0.25  # what was said last
    assert history.queries[0].last == history.upto > history.queries[-1].last
    assert history.items == sum(len(one.usefulness) for one in history.queries)
    assert len(history.passages) == len(set(history.passages))

    upto = history.queries[99].last if history.queries[99].last < history.upto else history.queries[98].last
    earlier = await load_feedback(world.store, ANN, most_items=10**6, upto=upto)
    assert len(earlier.queries) == 100
    assert earlier.upto == upto


async def test_of_too_much_the_oldest_queries_are_left_out(world: World) -> None:
    await world.says(ANN, likes("water"), range(20))
    history = await load_feedback(world.store, ANN, most_items=30)
    assert [one.query for one in history.queries] == [world.stream.query(one) for one in range(15, 20)]
    assert (history.items, history.left_out) == (6 * 20, 6 * 15)


def _asked(count: int, *, decide: int | None = None) -> list[QueryFeedback]:
    """Queries with two judged passages; only the first ``decide`` of them are judged unlike."""
    return [
        QueryFeedback(
            f"q{at}",
            "c",
            at * 10 + 1,
            at * 10 + 9,
            {"a": 1.0, "b": float(decide is not None and at >= decide)},
        )
        for at in range(count)
    ]


def test_the_newest_of_what_is_new_is_held_back() -> None:
    asked = _asked(20)
    train, held = split(asked, since=0, share=0.25, least=5)
    assert (train, held) == (asked[:15], asked[15:])
    # Of 12 new queries a quarter is 3; five are needed to find anything worse.
    train, held = split(asked, since=asked[7].last, share=0.25, least=5)
    assert (train, held) == (asked[:15], asked[15:])
    train, held = split(asked, since=asked[7].last, share=0.5, least=5)
    assert (train, held) == (asked[:14], asked[14:])


def test_queries_whose_passages_are_all_alike_do_not_count_among_those_that_decide() -> None:
    """Of 20 queries the 12 oldest decide: to hold back three of them, the 11 newest are needed, and half at most."""
    asked = _asked(20, decide=12)
    assert split(asked, since=0, share=0.25, least=1)[1] == asked[11:]
    assert split(asked, since=0, share=0.25, least=3)[1] == asked[10:]
    assert held_out_for([True, False, True, False], 1) == 2
    assert held_out_for([True, False, True, False], 2) == 4
    assert held_out_for([True, False], 0) == 0
    assert held_out_for([False, False], 1) == 2


def test_no_more_than_half_and_nothing_old_is_held_back() -> None:
    asked = _asked(6)
    assert split(asked, since=0, share=0.9, least=5) == (asked[:3], asked[3:])
    assert split(asked, since=asked[4].last, share=0.9, least=5) == (asked[:5], asked[5:])
    assert split(asked, since=asked[5].last, share=0.9, least=5) == (asked, ())
    assert split([], since=0, share=0.9, least=5) == ([], ())


def test_queries_without_a_passage_that_is_there_teach_nothing() -> None:
    one, other = (
        QueryFeedback("q", "c", 1, 2, {"a": 1.0, "b": 0.0}),
        QueryFeedback("r", "c", 3, 3, {"b": 1.0}),
    )
    [found] = training_examples([one, other], {("c", "a"): Passage("a", "", "text")})
    assert (found.query, [passage.id for passage in found.passages], found.usefulness) == ("q", ["a"], (1.0,))


async def test_a_query_of_two_collections_is_two_lists(world: World) -> None:
    items = [
        Feedback(f"{name}-{id_}", "one query", id_, ANN, useful, collection=name)
        for name, id_, useful in (("first", "p0", 1.0), ("second", "p0", 0.0), ("first", "p1", 0.5))
    ]
    await world.store.record(items)
    history = await load_feedback(world.store, ANN, most_items=10**6)
    assert [(one.collection, one.usefulness) for one in history.queries] == [
        ("first", {"p0": 1.0, "p1": 0.5}),
        ("second", {"p0": 0.0}),
    ]
    assert history.items == 3
    assert history.passages == [("first", "p0"), ("first", "p1"), ("second", "p0")]


def test_a_fusion_is_chosen_by_what_trains_no_parameters() -> None:
    asked = _asked(32, decide=32)
    common = {"since": asked[15].last, "share": 0.25, "least": 2}
    assert divided(asked, learns="model", trained=True, **common) == (asked[:28], (), asked[28:])
    assert divided(asked, learns="fusion", trained=False, **common) == ((), asked[:28], asked[28:])
    # What the served parameters were trained on before says nothing of how their scores are best fused.
    assert divided(asked, learns="fusion", trained=True, **common) == ((), asked[16:28], asked[28:])
    # Of the 12 that are left of the new ones a quarter, 3, chooses, and all others train.
    assert divided(asked, learns="both", trained=True, **common) == (asked[:25], asked[25:28], asked[28:])


def test_no_round_ranks_more_than_so_many_queries() -> None:
    asked = _asked(4 * MOST_RANKED, decide=4 * MOST_RANKED)
    train, choosing, held_out = divided(
        asked, learns="fusion", trained=False, since=0, share=0.5, least=MOST_RANKED
    )
    assert (train, choosing) == ((), asked[MOST_RANKED : 2 * MOST_RANKED])
    assert held_out == asked[3 * MOST_RANKED :]


def test_candidates_are_those_of_an_ask_and_what_was_judged_besides() -> None:
    found = Candidates(
        tuple(Passage(f"p{at}", "", "text") for at in range(100)), tuple(float(100 - at) for at in range(100))
    )
    judged = tuple(Passage(name, "", name) for name in ("p50", "gone deeper", "p3"))
    example = TrainingExample("q", judged, (1.0, 0.5, 0.0))
    candidates = with_candidates(example, found).found
    assert candidates is not None
    assert [one.id for one in candidates.passages] == [*(f"p{at}" for at in range(20)), "p50", "gone deeper"]
    # What was not found among a hundred has no higher score than the last of these.
    assert candidates.scores == (*(100.0 - at for at in range(20)), 50.0, 1.0)
    assert with_candidates(example, None) == with_candidates(example, Candidates((), ())) == example
