"""A small web on one port of this machine: a SearxNG-like search, and pages that we wrote, good and bad."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

Handler = Callable[["SmallWeb", dict[str, str], asyncio.StreamWriter], Awaitable[None]]

RIVER = """<!DOCTYPE html>
<html lang="en"><head><title>The long river</title><meta name="date" content="2021-03-04"></head><body>
<nav><a href="/">Home</a> <a href="/about">About this site</a></nav>
<article><h1>The long river</h1>
{paragraphs}
</article><footer>All rights of this page are ours.</footer></body></html>
"""
PARAGRAPH = (
    "<p>Chapter {n} of the river's story begins at mile {n}. The water is slow there, and the barges wait for "
    "the lock to open. People of the village say that nobody ever counted the fish.</p>"
)
WORDS_OF_PARAGRAPH = 35

SHORT = """<!DOCTYPE html><html><head><title>A short lake</title></head><body><article><h1>A short lake</h1>
<p>The lake of our example is short and deep. It was dug by the people who wrote this test, and it has no fish
at all. Boats are not allowed on it in winter, when the ice is too thin to walk on.</p></article></body></html>
"""


def river(paragraphs: int = 10) -> str:
    """A page of so many paragraphs."""
    return RIVER.format(paragraphs="\n".join(PARAGRAPH.format(n=n) for n in range(1, paragraphs + 1)))


async def respond(
    writer: asyncio.StreamWriter,
    body: bytes,
    *,
    status: str = "200 OK",
    kind: str = "text/html; charset=utf-8",
    **headers: str,
) -> None:
    """A whole answer."""
    lines = [
        f"HTTP/1.1 {status}",
        f"content-type: {kind}",
        f"content-length: {len(body)}",
        "connection: close",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    await writer.drain()


async def _search(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    if web.search_handler is not None:
        await web.search_handler(web, headers, writer)
        return
    await respond(writer, json.dumps({"results": web.results}).encode(), kind="application/json")


async def _river(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, river().encode())


async def _short(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, SHORT.encode())


async def _plain(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, "Plain words\x00 of a café.".encode("latin-1"), kind="text/plain; charset=latin-1")


async def _latin(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    page = SHORT.replace("short and deep", "très profond")
    await respond(writer, page.encode("latin-1"), kind="text/html; charset=ISO-8859-1")


async def _unknown(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, SHORT.encode(), kind="text/html; charset=no-such-code")


async def _slow(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    # Every byte is in time, and all of them never are.
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n<html>")
    while not writer.is_closing():
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _silent(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def _broken(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 100000\r\n\r\n<html><body>cut"
    )
    await writer.drain()


async def _garbage(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\x01\x02 this is not HTTP\r\n\r\n")
    await writer.drain()


async def _huge(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n\r\n" + river(20).encode())
    part = b"<p>And so on, and so on, for as long as anybody reads.</p>" * 1000
    while not writer.is_closing():
        writer.write(part)
        web.sent += len(part)
        await writer.drain()


async def _endless(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    # A tag of so many attributes keeps a parser busy for more than a minute.
    attributes = " ".join(f"a{i}='>'" for i in range(80_000))
    await respond(writer, f"<html><body><p {attributes}>x</p></body></html>".encode())


async def _picture(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, b"\x89PNG", kind="image/png")


async def _missing(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, river().encode(), status="404 Not Found")


async def _empty(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, b"")


async def _packed(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, gzip.compress(b"<p>bomb</p>" * 1000), content_encoding="gzip")


async def _loop(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, b"", status="302 Found", location="/loop")


async def _moved(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, b"", status="301 Moved Permanently", location="/river")


async def _elsewhere(web: SmallWeb, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
    await respond(writer, b"", status="302 Found", location="file:///etc/hostname")


ROUTES: dict[str, Handler] = {
    "/search": _search,
    "/river": _river,
    "/short": _short,
    "/plain": _plain,
    "/latin": _latin,
    "/unknown": _unknown,
    "/slow": _slow,
    "/silent": _silent,
    "/broken": _broken,
    "/garbage": _garbage,
    "/huge": _huge,
    "/endless": _endless,
    "/picture": _picture,
    "/missing": _missing,
    "/empty": _empty,
    "/packed": _packed,
    "/loop": _loop,
    "/moved": _moved,
    "/elsewhere": _elsewhere,
}


@dataclass
class SmallWeb:
    """The web that runs; ``asked`` is what was asked of it, path and parameters."""

    url: str
    results: list[dict[str, Any]] = field(default_factory=list)
    search_handler: Handler | None = None
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    sent: int = 0

    def lists(self, *pages: str) -> None:
        """Lets the search find these pages."""
        self.results = [
            {"url": self.url + page, "title": f"Title of {page}", "content": f"Snippet of {page}."}
            for page in pages
        ]

    def paths(self) -> list[str]:
        """Pages that were asked for, without the search."""
        return [path for path, _ in self.asked if path != "/search"]


@asynccontextmanager
async def small_web() -> AsyncIterator[SmallWeb]:
    """The web on a free port."""
    web = SmallWeb("")

    serving: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            target = (await reader.readline()).decode().split(" ")[1]
            headers = {}
            while line := (await reader.readline()).decode().strip():
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            parts = urlsplit(target)
            web.asked.append((parts.path, {name: one[0] for name, one in parse_qs(parts.query).items()}))
            web.headers.append(headers)
            await ROUTES[parts.path](web, headers, writer)
        except (ConnectionError, IndexError, asyncio.CancelledError):
            pass  # the other side has left, or the test is over
        finally:
            serving.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    web.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield web
    finally:
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving)
