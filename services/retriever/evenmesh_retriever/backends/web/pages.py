"""Fetch a page within bounds of bytes, time, redirects and content types."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from evenmesh_retriever.backends.web.addresses import PrivateAddress
from evenmesh_retriever.backends.web.page import Page

KINDS: Final = frozenset({"text/html", "application/xhtml+xml", "text/plain"})
"""Content types that are read."""


class PageUnreadable(Exception):  # noqa: N818 - a state of affairs
    """A page cannot be had; the message says why in a few words."""


async def fetch(client: httpx.AsyncClient, url: httpx.URL, *, most_bytes: int, timeout_s: float) -> Page:
    """Return the first ``most_bytes`` of a page.

    Args:
        client: follows as many redirects as it is set to.
        url: of the page.
        most_bytes: what is longer is cut there. Bytes.
        timeout_s: for all of it, however slowly it comes. Seconds.

    Raises:
        PageUnreadable: it is not there, is of another kind, is compressed, is at an address that is not
            public, redirects too often, or takes too long.
    """
    try:
        async with (
            asyncio.timeout(timeout_s),
            client.stream("GET", url, headers={"accept": ", ".join(sorted(KINDS))}) as response,
        ):
            kind = _checked(response)
            body = bytearray()
            # Raw: a compressed page could become a thousand times its size before it could be cut.
            async for part in response.aiter_raw():
                body += part
                if len(body) >= most_bytes:
                    break
            return Page(bytes(body[:most_bytes]), kind, response.charset_encoding)
    except TimeoutError:
        raise PageUnreadable("it took too long") from None
    except httpx.TooManyRedirects:
        raise PageUnreadable("it redirects too often") from None
    except PrivateAddress:
        raise PageUnreadable("it is at no public address") from None
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
        raise PageUnreadable("it cannot be reached") from None


def _checked(response: httpx.Response) -> str:
    if response.status_code != httpx.codes.OK:
        raise PageUnreadable(f"status {response.status_code}")
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in KINDS:
        raise PageUnreadable("it is no page of text")
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise PageUnreadable("it is compressed though it was asked not to be")
    return str(kind)
