"""What is read of an agent's feedback, and what is held back of it."""

from __future__ import annotations

from services.reranker.domain import Agent, Passage
from services.reranker.feedback.domain import Feedback
from services.reranker.online.lessons import Judged, hear, lessons, split
from tests.online_world import COLLECTION, World, likes

ANN = Agent("qa", "ann")


async def test_all_of_an_agents_feedback_is_heard_by_query(world: World) -> None:
    await world.says(Agent("qa", "bob"), likes("water"), range(3))
    await world.says(ANN, likes("water"), range(200))  # more than a page
    again = Feedback("again", world.stream.query(0), "p0", ANN, 0.25, collection=COLLECTION)
    await world.store.record([again])
    heard = await hear(world.store, ANN, most_items=10**6)
    assert [one.query for one in heard.queries] == [world.stream.query(one) for one in range(200)]
    assert (heard.upto, heard.left_out) == (await world.store.latest(), 0)
    assert heard.queries[0].usefulness[COLLECTION, "p0"] == 0.25  # what was said last
    assert heard.queries[0].last == heard.upto > heard.queries[-1].last
    assert heard.items == sum(len(one.usefulness) for one in heard.queries)
    assert len(heard.passages) == len(set(heard.passages))

    upto = heard.queries[99].last if heard.queries[99].last < heard.upto else heard.queries[98].last
    earlier = await hear(world.store, ANN, most_items=10**6, upto=upto)
    assert len(earlier.queries) == 100
    assert earlier.upto == upto


async def test_of_too_much_the_oldest_queries_are_left_out(world: World) -> None:
    await world.says(ANN, likes("water"), range(20))
    heard = await hear(world.store, ANN, most_items=30)
    assert [one.query for one in heard.queries] == [world.stream.query(one) for one in range(15, 20)]
    assert (heard.items, heard.left_out) == (6 * 20, 6 * 15)


def _asked(count: int) -> list[Judged]:
    return [Judged(f"q{at}", at * 10 + 1, at * 10 + 9) for at in range(count)]


def test_the_newest_of_what_is_new_is_held_back() -> None:
    asked = _asked(20)
    train, held = split(asked, since=0, share=0.25, least=5)
    assert (train, held) == (asked[:15], asked[15:])
    # Of 12 new queries a quarter is 3; five are needed to find anything worse.
    train, held = split(asked, since=asked[7].last, share=0.25, least=5)
    assert (train, held) == (asked[:15], asked[15:])
    train, held = split(asked, since=asked[7].last, share=0.5, least=5)
    assert (train, held) == (asked[:14], asked[14:])


def test_no_more_than_half_and_nothing_old_is_held_back() -> None:
    asked = _asked(6)
    assert split(asked, since=0, share=0.9, least=5) == (asked[:3], asked[3:])
    assert split(asked, since=asked[4].last, share=0.9, least=5) == (asked[:5], asked[5:])
    assert split(asked, since=asked[5].last, share=0.9, least=5) == (asked, ())
    assert split([], since=0, share=0.9, least=5) == ([], ())


def test_queries_without_a_passage_that_is_there_teach_nothing() -> None:
    one, other = Judged("q", 1, 2, {("c", "a"): 1.0, ("c", "b"): 0.0}), Judged("r", 3, 3, {("c", "b"): 1.0})
    [found] = lessons([one, other], {("c", "a"): Passage("a", "", "text")})
    assert (found.query, [passage.id for passage in found.passages], found.usefulness) == ("q", ["a"], (1.0,))
