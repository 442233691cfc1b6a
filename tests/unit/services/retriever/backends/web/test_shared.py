"""One search for what is asked several times within a moment."""

import asyncio

import pytest

from meshkit.errors import Unavailable
from services.retriever.backends.web.shared import KEPT, SharedSearches
from services.retriever.domain import Passage
from services.retriever.web import WebSourceInfo


class Counted:
    """Finds one passage that says how many searches there were; waits to be let go on where it is told to."""

    info = WebSourceInfo("w", "counts")

    def __init__(self) -> None:
        self.searches = 0
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.fails = False

    async def search(self, query: str) -> list[Passage]:
        self.searches += 1
        number = self.searches
        await self.go_on.wait()
        if self.fails:
            raise Unavailable("SEARCH_FAILED", f"search {number} failed")
        return [Passage(f"{query}-{number}", "", "x")]


async def test_equal_queries_are_one_search_for_a_while() -> None:
    source = Counted()
    shared = SharedSearches(source, keep_s=0.05)
    first = await shared.search("fox")
    assert await shared.search("fox") == first
    assert (await shared.search("dog"))[0].id == "dog-2"
    first.clear()  # a list of one's own
    assert (await shared.search("fox"))[0].id == "fox-1"
    await asyncio.sleep(0.1)
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


async def test_only_so_many_are_kept() -> None:
    source = Counted()
    shared = SharedSearches(source, keep_s=60)
    for number in range(KEPT + 1):
        await shared.search(f"q{number}")
    assert (await shared.search(f"q{KEPT}"))[0].id == f"q{KEPT}-{KEPT + 1}"
    assert (await shared.search("q0"))[0].id == f"q0-{KEPT + 2}"


@pytest.mark.parametrize("keep_s", [0.0, 1.0])
def test_sources_share_unless_told_not_to(keep_s: float) -> None:
    from services.retriever.backends.web.settings import WebSourceSettings
    from services.retriever.backends.web.source import SearxSource, SearxSources

    async def made() -> object:
        sources = SearxSources({"w": WebSourceSettings(url="http://searx:8080", keep_s=keep_s)}, 1)
        one = sources.sources["w"]
        await sources.close()
        return one

    assert isinstance(asyncio.run(made()), SharedSearches if keep_s else SearxSource)
