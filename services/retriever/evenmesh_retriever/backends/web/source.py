"""Search the web: get results, fetch their pages concurrently, extract text, cut passages."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Mapping
from typing import Final

import httpx

from evenmesh.wire import deadline
from evenmesh.wire.checks import MAX_ATTRIBUTE_BYTES, MAX_PASSAGE_BYTES
from evenmesh.wire.deadline import Deadline
from evenmesh.wire.errors import DeadlineExceeded
from evenmesh_retriever.backends.web.addresses import PublicOnly
from evenmesh_retriever.backends.web.chunks import chunks
from evenmesh_retriever.backends.web.page import Text
from evenmesh_retriever.backends.web.pages import PageUnreadable, fetch
from evenmesh_retriever.backends.web.readers import Readers
from evenmesh_retriever.backends.web.searx import Result, search
from evenmesh_retriever.backends.web.settings import WebSourceSettings
from evenmesh_retriever.backends.web.shared import SharedSearches
from evenmesh_retriever.domain import Passage
from evenmesh_retriever.web import WebSource, WebSourceInfo

_log = logging.getLogger("evenmesh.retriever.web")

_AGENT: Final = "evenmesh/0.1 (retrieval-augmented generation)"
_MAX_TITLE: Final = 512
_MARGIN_S: Final = 0.05
# Passages beside their text: a page's longest words cannot make one too large for the contract.
_MAX_TEXT_BYTES: Final = MAX_PASSAGE_BYTES - 4 * _MAX_TITLE
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class SearxSource:
    """A SearxNG server as :class:`evenmesh_retriever.web.WebSource`. Made in a running event loop.

    Args:
        name: of the source.
        settings: where it is, and how its results become passages.
        readers: processes that read pages.
    """

    def __init__(self, name: str, settings: WebSourceSettings, readers: Readers) -> None:
        self._name = name
        self._settings = settings
        self._readers = readers
        # No proxy of the environment: it would look names up itself, behind our back.
        self._search = httpx.AsyncClient(
            headers={"user-agent": _AGENT},
            timeout=None,  # noqa: S113 - all of a search has a limit, and not each of its steps
            trust_env=False,
        )
        connections = httpx.AsyncHTTPTransport(
            trust_env=False, limits=httpx.Limits(max_connections=64, max_keepalive_connections=0)
        )
        self._pages = httpx.AsyncClient(
            transport=connections if settings.allow_private else PublicOnly(connections),
            headers={"user-agent": _AGENT, "accept-encoding": "identity"},
            follow_redirects=settings.redirects > 0,
            max_redirects=settings.redirects,
            timeout=None,  # noqa: S113 - and so has all of a page
            trust_env=False,
        )

    @property
    def info(self) -> WebSourceInfo:
        """What it is."""
        described = f"the pages of {self._settings.results} results of a SearxNG search"
        return WebSourceInfo(self._name, self._settings.description or described)

    async def search(self, query: str) -> list[Passage]:
        """Return passages of the pages that a search finds, in the order of the results and of the pages.

        A page that cannot be read in time is left out, or stands for itself with the search's snippet.

        Raises:
            DeadlineExceeded: the search does not answer in time.
            MeshError: as :func:`evenmesh_retriever.backends.web.searx.search`.
        """
        settings = self._settings
        budget = deadline.current().budget(cap_s=settings.timeout_s, margin_s=_MARGIN_S)
        ends = Deadline.after(budget)
        try:
            async with asyncio.timeout(budget):
                results = await search(self._search, self._name, settings, query)
        except TimeoutError:
            raise DeadlineExceeded(f"web source {self._name}: the search did not answer in time") from None
        pages = [asyncio.create_task(self._passages(result, ends)) for result in results]
        try:
            return [passage for found in await asyncio.gather(*pages) for passage in found]
        finally:
            for page in pages:
                page.cancel()
            await asyncio.gather(*pages, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections."""
        await asyncio.gather(self._search.aclose(), self._pages.aclose())

    async def _passages(self, result: Result, ends: Deadline) -> list[Passage]:
        text = await self._text(result, ends)
        if text is None:
            if not (self._settings.snippets and result.snippet.strip()):
                return []
            text = Text(result.title, result.snippet)
        return _cut(result, text, self._settings)

    async def _text(self, result: Result, ends: Deadline) -> Text | None:
        settings = self._settings
        timeout_s = min(settings.page_timeout_s, ends.remaining())
        try:
            page = await fetch(self._pages, result.url, most_bytes=settings.page_bytes, timeout_s=timeout_s)
        except PageUnreadable as error:
            # Which page it was is a user's business: it says what was asked.
            _log.info("a page of web source %s was not read: %s", self._name, error)
            return None
        timeout_s = min(settings.page_timeout_s, ends.remaining())
        try:
            return await self._readers.read(page, str(result.url), timeout_s=timeout_s)
        except TimeoutError:
            _log.info("a page of web source %s was not read: it takes too long to", self._name)
            return None


class SearxSources:
    """The web sources of one process, and the readers they share. Made in a running event loop.

    Args:
        settings: of each source, by name.
        readers: pages that are read at a time, [1, inf).
    """

    def __init__(self, settings: Mapping[str, WebSourceSettings], readers: int) -> None:
        self._readers = Readers(readers)
        self._own = {name: SearxSource(name, one, self._readers) for name, one in settings.items()}
        self.sources: Mapping[str, WebSource] = {
            name: SharedSearches(own, keep_s=settings[name].keep_s) if settings[name].keep_s else own
            for name, own in self._own.items()
        }

    async def start(self) -> None:
        """Start the readers. Raises CannotStart when a package is missing."""
        await self._readers.start()

    async def close(self) -> None:
        """Close the connections and end the readers."""
        await asyncio.gather(*(source.close() for source in self._own.values()))
        await self._readers.close()


def _cut(result: Result, text: Text, settings: WebSourceSettings) -> list[Passage]:
    """Return a page's passages; ids follow from its address and the place in it alone."""
    name = hashlib.sha256(str(result.url).encode()).hexdigest()[:16]
    title = _CONTROL.sub(" ", text.title or result.title).strip()[:_MAX_TITLE]
    attributes = {"provider": result.url.host, "url": str(result.url)}
    if text.date:
        attributes["date"] = text.date
    if text.language:
        attributes["language"] = text.language
    kept = {
        key: value
        for key, value in attributes.items()
        if len(key) + len(value.encode()) <= MAX_ATTRIBUTE_BYTES
    }
    parts = chunks(text.body, settings.words)[: settings.passages_per_page]
    return [
        Passage(f"{name}-{place}", title, _fitting(part), kept) for place, part in enumerate(parts, start=1)
    ]


def _fitting(text: str) -> str:
    """Return the text as far as a passage can hold it."""
    encoded = text.encode(errors="ignore")
    return encoded[:_MAX_TEXT_BYTES].decode(errors="ignore")
