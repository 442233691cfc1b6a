"""Read feeds (RSS, Atom): each entry becomes a page with title, author and date."""

import html
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from time import struct_time
from typing import Any, Final

from evenmesh_documents.document import UnreadableError

ROOTS: Final = frozenset({"rss", "feed", "RDF"})
"""Names of the root element of RSS, of Atom, and of RSS 1.0."""
MAX_FEED_BYTES: Final = 16 << 20
MAX_ENTRIES: Final = 10_000

_TAG: Final = re.compile(r"<[^<>]{0,200}>")
_MARKUP: Final = frozenset({"text/html", "application/xhtml+xml"})


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a feed.

    Attributes:
        link: where it leads, as written; empty if nowhere.
        id: what the feed names it by, or a hash of it.
        page: the entry as a page of HTML: its title, author, date, and content or summary.
        stamp: the time of its last change, as written; empty if it has none.
    """

    link: str
    id: str
    page: bytes
    stamp: str


def entries_of(data: bytes) -> Iterator[Entry]:
    """Yield the entries of a feed, in its order.

    Args:
        data: well-formed XML without a document type, whose root is one of :data:`ROOTS`.

    Raises:
        UnreadableError: it is too large, has too many entries, or feedparser is not installed.
    """
    if len(data) > MAX_FEED_BYTES:
        raise UnreadableError(f"is a feed of more than {MAX_FEED_BYTES:,} bytes")
    try:
        import feedparser
    except ModuleNotFoundError as exc:
        raise UnreadableError("is a feed, and feedparser is not installed: pip install feedparser") from exc
    # What is read of a page is text alone, so there is no need to make it safe to show. Given a string,
    # feedparser would open a file or an address of that name.
    found = feedparser.parse(io.BytesIO(data), sanitize_html=False)
    if len(found.entries) > MAX_ENTRIES:
        raise UnreadableError(f"has more than {MAX_ENTRIES:,} entries")
    for one in found.entries:
        page = _page(one)
        link, name = str(one.get("link", "")).strip(), str(one.get("id", "")).strip()
        stamp = next((str(one[name]) for name in ("updated", "published") if name in one), "")
        yield Entry(link, name or sha256(page).hexdigest()[:16], page, stamp[:64])


def _page(entry: Mapping[str, Any]) -> bytes:
    stated = {"author": _author(entry), "date": _date(entry)}
    head = "".join(
        f'<meta name="{name}" content="{html.escape(text)}">' for name, text in stated.items() if text
    )
    title = html.escape(_plain(entry.get("title_detail", {})))
    contents = entry.get("content") or [entry.get("summary_detail", {})]
    body = "".join(map(_markup, contents))
    made = f'<!doctype html><meta charset="utf-8"><title>{title}</title>{head}<body><article>{body}</article>'
    return made.encode("utf-8", "replace")


def _author(entry: Mapping[str, Any]) -> str:
    names = [str(one.get("name", "")).strip() for one in entry.get("authors", ())]
    return ", ".join(dict.fromkeys(filter(None, names))) or str(entry.get("author", "")).strip()


def _date(entry: Mapping[str, Any]) -> str:
    """Return when it was published, or else changed, in ISO 8601; empty where that is no date."""
    there = [name for name in ("published_parsed", "updated_parsed") if name in entry]
    for parsed in map(entry.__getitem__, there):
        if isinstance(parsed, struct_time):
            return datetime(*parsed[:6], tzinfo=UTC).isoformat()
    return ""


def _markup(detail: Mapping[str, Any]) -> str:
    """Return a text of a feed as HTML."""
    text = str(detail.get("value", ""))
    return text if detail.get("type") in _MARKUP else f"<p>{html.escape(text)}</p>"


def _plain(detail: Mapping[str, Any]) -> str:
    """Return a text of a feed without markup."""
    text = str(detail.get("value", ""))
    return html.unescape(_TAG.sub("", text)).strip() if detail.get("type") in _MARKUP else text
