"""A web source over a small web of our own: what becomes passages, and what goes wrong how."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
import pytest_asyncio

from evenmesh.wire import checks, deadline
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded, FailedPrecondition, MeshError, Overloaded, Unavailable
from evenmesh_retriever.backends.web.readers import Readers
from evenmesh_retriever.backends.web.settings import WebSourceSettings
from evenmesh_retriever.backends.web.source import SearxSource
from tests.unit.retriever.backends.web.small_web import (
    ROUTES,
    WORDS_OF_PARAGRAPH,
    SmallWeb,
    respond,
    small_web,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def web() -> AsyncIterator[SmallWeb]:
    async with small_web() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def readers() -> AsyncIterator[Readers]:
    readers = Readers(2)
    await readers.start()
    yield readers
    await readers.close()


Make = Callable[..., SearxSource]


@pytest_asyncio.fixture(loop_scope="module")
async def source(web: SmallWeb, readers: Readers) -> AsyncIterator[Make]:
    """Makes a source over the small web, which is at a private address."""
    async with AsyncExitStack() as stack:

        def make(**settings: Any) -> SearxSource:
            known = {"url": web.url, "allow_private": True} | settings
            made = SearxSource("searx", WebSourceSettings(**known), readers)
            stack.push_async_callback(made.close)
            return made

        yield make


async def test_pages_become_passages_in_the_order_of_the_search(web: SmallWeb, source: Make) -> None:
    web.lists("/short", "/river")
    passages = await source().search("long river?")
    assert web.asked[0] == ("/search", {"q": "long river?", "format": "json"})
    short, *river = passages
    assert (short.title, short.text.split()[:4]) == ("A short lake", ["The", "lake", "of", "our"])
    assert [passage.title for passage in river] == ["The long river"] * len(river)
    words = " ".join(passage.text for passage in river).split()
    assert len(words) == 10 * WORDS_OF_PARAGRAPH
    assert words[:4] == ["Chapter", "1", "of", "the"]
    assert all(80 <= len(passage.text.split()) <= 120 for passage in river[:-1])
    assert all(passage.text.endswith((".", "fish.")) for passage in river)
    assert not any("rights of this page" in passage.text or "About" in passage.text for passage in passages)


async def test_attributes_say_where_a_passage_is_from(web: SmallWeb, source: Make) -> None:
    web.lists("/river", "/short")
    passages = await source().search("q")
    assert dict(passages[0].attributes) == {
        "provider": "127.0.0.1",
        "url": f"{web.url}/river",
        "date": "2021-03-04",
        "language": "en",
    }
    assert set(passages[-1].attributes) == {"provider", "url"}


async def test_ids_follow_from_the_page_and_the_place_in_it(web: SmallWeb, source: Make) -> None:
    web.lists("/river", "/short")
    first = await source().search("q")
    web.lists("/short", "/river")
    second = await source().search("another question")
    assert {one.id: one.text for one in first} == {one.id: one.text for one in second}
    name = hashlib.sha256(f"{web.url}/river".encode()).hexdigest()[:16]
    assert [one.id for one in first][:2] == [f"{name}-1", f"{name}-2"]
    checks.passages("passages", first)


async def test_what_the_papers_cuts_are_by_settings(web: SmallWeb, source: Make) -> None:
    web.lists("/river", "/short")
    # SE@4: the beginning of each page, here 60 words of it instead of 250.
    passages = await source(words=60, passages_per_page=1).search("q")
    assert [one.title for one in passages] == ["The long river", "A short lake"]
    assert 45 <= len(passages[0].text.split()) <= 75


async def test_only_so_many_results_are_read_and_each_page_once(web: SmallWeb, source: Make) -> None:
    web.lists("/short", "/short", "/river", "/plain")
    web.results[1]["url"] += "#part"
    web.results.insert(0, {"title": "no address"})
    web.results.insert(0, "no result")  # type: ignore[arg-type]
    web.results.insert(0, {"url": "ftp://127.0.0.1/file"})
    web.results.insert(0, {"url": "http://no\x00where/"})
    await source(results=2).search("q")
    assert sorted(web.paths()) == ["/river", "/short"]


async def test_language_and_categories_are_asked_for(web: SmallWeb, source: Make) -> None:
    await source(language="de", categories=["general", "news"]).search("q")
    assert web.asked == [
        ("/search", {"q": "q", "format": "json", "language": "de", "categories": "general,news"})
    ]


async def test_nothing_found_is_nothing(source: Make) -> None:
    assert await source().search("q") == []


async def test_text_that_is_no_html(web: SmallWeb, source: Make) -> None:
    web.lists("/plain")
    (passage,) = await source().search("q")
    assert (passage.title, passage.text) == ("Title of /plain", "Plain words of a café.")


async def test_encodings_are_what_the_server_says(web: SmallWeb, source: Make) -> None:
    web.lists("/latin", "/unknown")
    latin, unknown = await source().search("q")
    assert "is très profond." in latin.text
    assert "is short and deep." in unknown.text


async def test_searches_at_once_do_not_share_their_time(web: SmallWeb, source: Make) -> None:
    web.lists("/short")
    made = source(timeout_s=30)

    async def search(within_s: float) -> int:
        deadline.enter(Deadline.after(within_s))
        return len(await made.search("q"))

    long, short = asyncio.create_task(search(30)), asyncio.create_task(search(0.001))
    with pytest.raises(DeadlineExceeded):
        await short
    assert await long == 1


async def test_redirects_are_followed(web: SmallWeb, source: Make) -> None:
    web.lists("/moved")
    passages = await source().search("q")
    assert passages[0].title == "The long river"
    assert passages[0].attributes["url"] == f"{web.url}/moved"


BAD = [
    "/missing",
    "/picture",
    "/packed",
    "/empty",
    "/broken",
    "/garbage",
    "/loop",
    "/elsewhere",
    "/slow",
    "/silent",
]


@pytest.mark.parametrize("page", BAD)
async def test_a_page_that_cannot_be_read_leaves_the_others(web: SmallWeb, source: Make, page: str) -> None:
    web.lists(page, "/short")
    # The good page must be read within the same time.
    settings = {"timeout_s": 60, "page_timeout_s": 3 if page in ("/slow", "/silent") else 60}
    async with asyncio.timeout(40):
        without, passages = await asyncio.gather(
            source(snippets=False, **settings).search("q"), source(**settings).search("q")
        )
    assert [one.title for one in without] == ["A short lake"]
    assert [(one.title, one.text) for one in passages[:-1]] == [(f"Title of {page}", f"Snippet of {page}.")]


async def test_redirects_end(web: SmallWeb, source: Make) -> None:
    web.lists("/loop")
    await source(redirects=3).search("q")
    assert web.paths() == ["/loop"] * (1 + 3)
    web.asked.clear()
    await source(redirects=0).search("q")
    assert web.paths() == ["/loop"]


async def test_a_page_without_end_is_cut(web: SmallWeb, source: Make) -> None:
    web.lists("/huge")
    passages = await source(page_bytes=2**16, passages_per_page=100).search("q")
    assert passages[0].text.startswith("Chapter 1 of the river's story")
    # What is sent beyond waits in buffers of the two sockets, and is never read.
    assert sum(len(one.text) for one in passages) <= 2**16
    assert web.sent < 2**26


async def test_pages_are_asked_to_come_as_they_are(web: SmallWeb, source: Make) -> None:
    web.lists("/short")
    await source().search("q")
    assert web.headers[1]["accept-encoding"] == "identity"
    assert web.headers[1]["user-agent"].startswith("evenmesh/")


async def test_private_addresses_are_not_fetched(web: SmallWeb, source: Make) -> None:
    web.lists("/short", "/river")
    web.results[1]["url"] = web.results[1]["url"].replace("127.0.0.1", "localhost")
    # The search itself is where the settings say, private or not.
    assert await source(allow_private=False, snippets=False).search("q") == []
    assert web.paths() == []


async def test_a_search_that_cannot_be_reached(source: Make, web: SmallWeb) -> None:
    free = "http://127.0.0.1:1"  # nobody listens on it
    with pytest.raises(Unavailable, match="web source searx: the search cannot be reached") as caught:
        await source(url=free).search("q")
    assert caught.value.reason == "WEB_UNAVAILABLE"
    assert free not in caught.value.message


async def _status(web: SmallWeb, writer: asyncio.StreamWriter, status: str, **headers: str) -> None:
    await respond(writer, b"<html>no</html>", status=status, **headers)


@pytest.mark.parametrize(
    ("status", "headers", "kind", "words"),
    [
        ("500 Internal Server Error", {}, Unavailable, "the search answered with status 500"),
        ("404 Not Found", {}, Unavailable, "status 404"),
        ("302 Found", {"location": "/river"}, Unavailable, "status 302"),
        ("403 Forbidden", {}, FailedPrecondition, "add json to search.formats"),
        ("429 Too Many Requests", {"retry_after": "7"}, Overloaded, "rejects further requests"),
        ("429 Too Many Requests", {"retry_after": "soon"}, Overloaded, "rejects further requests"),
        ("200 OK", {}, Unavailable, "did not return a list of results"),
    ],
)
async def test_a_search_that_says_no(
    web: SmallWeb, source: Make, status: str, headers: dict[str, str], kind: type[MeshError], words: str
) -> None:
    async def answer(web: SmallWeb, _: dict[str, str], writer: asyncio.StreamWriter) -> None:
        await _status(web, writer, status, **headers)

    web.search_handler = answer
    with pytest.raises(kind, match=words) as caught:
        await source().search("q")
    if kind is Overloaded:
        assert caught.value.retry_after_s == (7.0 if headers["retry_after"] == "7" else 5.0)


@pytest.mark.parametrize("body", [b"[]", b'{"results": 5}', b"{", b"\xff", b"[" * 100_000])
async def test_a_search_that_makes_no_sense(web: SmallWeb, source: Make, body: bytes) -> None:
    async def answer(web: SmallWeb, _: dict[str, str], writer: asyncio.StreamWriter) -> None:
        await respond(writer, body, kind="application/json")

    web.search_handler = answer
    with pytest.raises(Unavailable, match="not return a list of results"):
        await source().search("q")


async def test_a_search_that_says_too_much(web: SmallWeb, source: Make) -> None:
    async def answer(web: SmallWeb, _: dict[str, str], writer: asyncio.StreamWriter) -> None:
        await respond(writer, b" " * (5 * 2**20), kind="application/json")

    web.search_handler = answer
    with pytest.raises(Unavailable, match="is too large"):
        await source().search("q")


@pytest.mark.parametrize("page", ["/silent", "/slow"])
async def test_a_search_that_takes_too_long(web: SmallWeb, source: Make, page: str) -> None:
    web.search_handler = ROUTES[page]
    with pytest.raises(
        DeadlineExceeded, match="web source searx: the search did not answer in time"
    ) as caught:
        await source(timeout_s=0.2).search("q")
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_the_calls_deadline_is_kept_before_the_settings(web: SmallWeb, source: Make) -> None:
    web.lists("/silent", "/short")
    made = source(timeout_s=60, page_timeout_s=60)

    async def search() -> list[str]:
        deadline.enter(Deadline.after(4))
        return [one.title for one in await made.search("q")]

    # The page that came in time is there, the other one is its snippet.
    async with asyncio.timeout(40):
        assert await asyncio.create_task(search()) == ["Title of /silent", "A short lake"]


async def test_leaving_stops_the_pages(web: SmallWeb, source: Make) -> None:
    web.lists("/silent")
    made = source(timeout_s=60, page_timeout_s=60)
    searching = asyncio.create_task(made.search("q"))
    while not web.paths():
        await asyncio.sleep(0.01)
    searching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await searching


async def test_a_page_that_keeps_its_reader_busy_does_not_keep_the_others(
    web: SmallWeb, source: Make, readers: Readers
) -> None:
    web.lists("/endless", "/short")
    made = source(page_timeout_s=5, timeout_s=60, snippets=False)
    async with asyncio.timeout(40):
        assert [one.title for one in await made.search("q")] == ["A short lake"]
    # Its reader was ended, and another one reads on.
    web.lists("/river", "/short")
    titles = [one.title for one in await source(page_timeout_s=30, timeout_s=60).search("q")]
    assert set(titles) == {"The long river", "A short lake"}


async def test_what_a_source_says_of_itself(readers: Readers) -> None:
    known = SearxSource("searx", WebSourceSettings(url="http://searx:8080", results=3), readers).info
    assert (known.name, known.description) == ("searx", "the pages of 3 results of a SearxNG search")
    reported = SearxSource("a", WebSourceSettings(url="http://searx:8080", description="News"), readers).info
    assert reported.description == "News"
