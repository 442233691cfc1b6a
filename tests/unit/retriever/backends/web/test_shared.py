"""One search for what is asked several times within a moment."""

import asyncio

from evenmesh.wire.errors import Unavailable
from evenmesh_kit.security import caller as callers
from evenmesh_kit.security.caller import Caller
from evenmesh_retriever.backends.web.shared import SharedSearches
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.web import WebSourceInfo


class Counted:
    """Finds one passage that says how many searches there were; waits to be let go on where it is reported to."""

    info = WebSourceInfo("w", "counts")

    def __init__(self) -> None:
        self.searches = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fails = False
        self.running = 0

    async def search(self, query: str) -> list[Passage]:
        self.searches += 1
        number = self.searches
        self.running += 1
        try:
            await self.go_on.wait()
        finally:
            self.running -= 1
        if self.fails:
            raise Unavailable("SEARCH_FAILED", f"search {number} failed")
        return [Passage(f"{query}-{number}", "", "x")]


async def test_equal_queries_are_one_search_for_a_while() -> None:
    source, now = Counted(), 100.0
    shared = SharedSearches(source, keep_s=2, clock=lambda: now)
    first = await shared.search("fox")
    assert await shared.search("fox") == first
    assert (await shared.search("dog"))[0].id == "dog-2"
    first.clear()  # a list of one's own
    assert (await shared.search("fox"))[0].id == "fox-1"
    now = 101.9
    assert (await shared.search("fox"))[0].id == "fox-1"
    now = 102.1
    assert (await shared.search("fox"))[0].id == "fox-3"
    assert shared.info == source.info


async def test_who_asks_while_a_search_is_under_way_waits_for_it() -> None:
    source = Counted()
    source.go_on.clear()
    shared = SharedSearches(source, keep_s=60)
    asked = [asyncio.create_task(shared.search("fox")) for _ in range(5)]
    await asyncio.sleep(0)
    asked[0].cancel()  # who began it goes away, and the others have it all the same
    await asyncio.sleep(0)
    source.go_on.set()
    found = await asyncio.gather(*asked[1:])
    assert {passage.id for one in found for passage in one} == {"fox-1"}
    assert source.searches == 1


async def test_a_search_ends_with_the_last_who_waits_for_it() -> None:
    source = Counted()
    source.go_on.clear()
    shared = SharedSearches(source, keep_s=60)
    asked = [asyncio.create_task(shared.search("fox")) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for one in asked:
        assert source.running == 1
        one.cancel()
    await asyncio.wait(asked)
    again = asyncio.create_task(shared.search("fox"))  # not the one that is just ending
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (source.running, source.searches) == (1, 2)
    source.go_on.set()
    assert (await again)[0].id == "fox-2"
    assert (source.running, shared._under_way) == (0, {})


async def test_what_failed_is_searched_again() -> None:
    source = Counted()
    source.fails = True
    source.go_on.clear()
    shared = SharedSearches(source, keep_s=60)
    asked = [asyncio.create_task(shared.search("fox")) for _ in range(3)]
    await asyncio.sleep(0)
    source.go_on.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, Unavailable) for one in outcomes)
    assert source.searches <= 3  # no more than without sharing
    source.fails = False
    assert (await shared.search("fox"))[0].id == f"fox-{source.searches}"


async def test_only_so_much_is_kept() -> None:
    source = Counted()
    shared = SharedSearches(source, keep_s=60, keep_bytes=20_000)
    for number in range(10):
        await shared.search(f"q{number}")
    assert (await shared.search("q9"))[0].id == "q9-10"
    assert (await shared.search("q0"))[0].id == "q0-11"


async def test_tenants_share_no_search() -> None:
    source = Counted()
    source.go_on.clear()
    shared = SharedSearches(source, keep_s=60)

    async def asked(tenant: str) -> str:
        callers.enter(Caller(tenant, tenant, frozenset()))
        return (await shared.search("secret"))[0].id

    under_way = [asyncio.create_task(asked(tenant)) for tenant in ("a", "a", "b")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert source.searches == 2
    source.go_on.set()
    assert await asyncio.gather(*under_way) == ["secret-1", "secret-1", "secret-2"]
    assert await asyncio.create_task(asked("c")) == "secret-3"
    assert await asyncio.create_task(asked("a")) == "secret-1"
