"""What is read of an agent's feedback, and what is held back of it."""

from __future__ import annotations

from evenmesh_reranker.domain import Agent, Passage
from evenmesh_reranker.feedback.domain import Feedback
from evenmesh_training.online.training_examples import (
    QueryFeedback,
    held_out_for,
    load_feedback,
    split,
    training_examples,
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
    assert history.queries[0].usefulness[COLLECTION, "p0"] == 0.25  # what was said last
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
            at * 10 + 1,
            at * 10 + 9,
            {("c", "a"): 1.0, ("c", "b"): float(decide is not None and at >= decide)},
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
        QueryFeedback("q", 1, 2, {("c", "a"): 1.0, ("c", "b"): 0.0}),
        QueryFeedback("r", 3, 3, {("c", "b"): 1.0}),
    )
    [found] = training_examples([one, other], {("c", "a"): Passage("a", "", "text")})
    assert (found.query, [passage.id for passage in found.passages], found.usefulness) == ("q", ["a"], (1.0,))
