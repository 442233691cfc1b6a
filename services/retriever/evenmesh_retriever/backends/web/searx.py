"""Call the JSON API of SearxNG."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx

from evenmesh.wire.errors import FailedPrecondition, Overloaded, Unavailable
from evenmesh_retriever.backends.web.settings import WebSourceSettings

MAX_RESULTS_BYTES: Final = 4 * 2**20
"""Largest answer of a search server that is read. Bytes."""

_RETRY_AFTER_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Result:
    """One result: where the page is, and what the server says of it."""

    url: httpx.URL
    title: str
    snippet: str


async def search(
    client: httpx.AsyncClient, name: str, settings: WebSourceSettings, query: str
) -> list[Result]:
    """Return the best results of a search, each page once.

    Args:
        client: makes the call; how long it may take is the caller's.
        name: of the source, for errors.
        settings: of the source.
        query: what to search for.

    Raises:
        Unavailable: the server cannot be reached, fails, or says what cannot be understood.
        FailedPrecondition: it does not speak JSON, which its own settings must allow.
        Overloaded: it wants fewer requests.
    """
    parameters = {"q": query, "format": "json"}
    if settings.language:
        parameters["language"] = settings.language
    if settings.categories:
        parameters["categories"] = ",".join(settings.categories)
    url = f"{str(settings.url).rstrip('/')}/search"
    try:
        async with client.stream("GET", url, params=parameters) as response:
            _check(name, response)
            body = await _body(name, response)
    except httpx.HTTPError:
        raise Unavailable("WEB_UNAVAILABLE", f"web source {name}: the search cannot be reached") from None
    try:
        found = json.loads(body)["results"]
        return list(_results(found))[: settings.results]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise Unavailable(
            "WEB_UNAVAILABLE", f"web source {name}: the search did not return a list of results"
        ) from None


def _check(name: str, response: httpx.Response) -> None:
    status = response.status_code
    if status == httpx.codes.OK:
        return
    if status == httpx.codes.FORBIDDEN:
        raise FailedPrecondition(
            "WEB_NO_JSON",
            f"web source {name}: the search refuses JSON; add json to search.formats in its settings.yml",
        )
    if status == httpx.codes.TOO_MANY_REQUESTS:
        wait = response.headers.get("retry-after", "")
        raise Overloaded(
            f"web source {name}: the search rejects further requests for now; try again later",
            float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 5 else _RETRY_AFTER_S,
        )
    raise Unavailable("WEB_UNAVAILABLE", f"web source {name}: the search answered with status {status}")


async def _body(name: str, response: httpx.Response) -> bytes:
    body = bytearray()
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_RESULTS_BYTES:
            raise Unavailable("WEB_UNAVAILABLE", f"web source {name}: the answer of the search is too large")
    return bytes(body)


def _results(found: list[dict[str, Any]]) -> Iterator[Result]:
    seen = set()
    for one in found:
        try:
            url = httpx.URL(one["url"])
        except (httpx.InvalidURL, KeyError, TypeError):
            continue
        if url.scheme not in ("http", "https") or not url.host:
            continue
        url = url.copy_with(fragment=None)
        if url in seen:
            continue
        seen.add(url)
        yield Result(url, str(one.get("title") or ""), str(one.get("content") or ""))
