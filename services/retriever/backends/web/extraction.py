"""What a page says: its main text, without what surrounds it. Computes; runs in a thread."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import trafilatura

from services.retriever.backends.web.pages import Page

_LANGUAGE: Final = re.compile(rb"<html\b[^>]*?\blang\s*=\s*[\"']?([A-Za-z]{2,3})\b", re.IGNORECASE)
_HEAD_BYTES: Final = 4_096


@dataclass(frozen=True, slots=True)
class Text:
    """A page's text; ``date`` (ISO 8601) and ``language`` (as the page declares it) may be empty."""

    title: str
    body: str
    date: str = ""
    language: str = ""


def extract(page: Page, url: str) -> Text | None:
    """The main text of a page; None where nothing of it is text.

    Boilerplate removal is trafilatura's.
    """
    if page.kind == "text/plain":
        try:
            body = page.body.decode(page.encoding or "utf-8", errors="replace")
        except LookupError:
            body = page.body.decode("utf-8", errors="replace")
        body = body.replace("\x00", "")
        return Text("", body) if body.strip() else None
    document = trafilatura.bare_extraction(
        page.body,
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
