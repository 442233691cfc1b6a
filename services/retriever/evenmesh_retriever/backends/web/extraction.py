"""Extract the main text of a page. Runs in a separate process."""

from __future__ import annotations

import re
from typing import Final

import trafilatura

from evenmesh_retriever.backends.web.page import Page, Text

_LANGUAGE: Final = re.compile(rb"<html\b[^>]*?\blang\s*=\s*[\"']?([A-Za-z]{2,3})\b", re.IGNORECASE)
_HEAD_BYTES: Final = 4_096


def extract(page: Page, url: str) -> Text | None:
    """Return the main text of a page; None where nothing of it is text.

    Boilerplate removal is trafilatura's.
    """
    if page.kind == "text/plain":
        body = _decoded(page, page.encoding or "utf-8").replace("\x00", "")
        return Text("", body) if body.strip() else None
    document = trafilatura.bare_extraction(
        # Without a word from the server the page itself says how it is encoded, or it is guessed.
        page.body if page.encoding is None else _decoded(page, page.encoding),
        url=url,
        fast=True,
        include_comments=False,
        include_tables=True,
        with_metadata=True,
    )
    if document is None or isinstance(document, dict) or not document.text:
        return None
    title = document.title or ""
    body = document.text.replace("\x00", "")
    # A heading that repeats the title is not said twice.
    head, _, rest = body.partition("\n")
    if title and head.strip() == title.strip():
        body = rest
    declared = _LANGUAGE.search(page.body[:_HEAD_BYTES])
    return Text(
        title,
        body,
        date=document.date or "",
        language=declared[1].decode().lower() if declared is not None else "",
    )


def _decoded(page: Page, encoding: str) -> str:
    try:
        return page.body.decode(encoding, errors="replace")
    except LookupError:
        return page.body.decode("utf-8", errors="replace")
