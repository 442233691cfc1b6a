"""The built files of the console, with the headers that keep a page to its own origin."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final
from urllib.parse import urlsplit

INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def policy(issuer: str = "") -> str:
    """Return the content security policy: nothing of another origin, but requests of the issuer of tokens.

    Args:
        issuer: its address; empty where nobody signs in with one.
    """
    parts = urlsplit(issuer)
    origin = f" {parts.scheme}://{parts.netloc}" if issuer else ""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data:",  # ticks and arrows of form fields stand in the style sheet
            f"connect-src 'self'{origin}",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is sent.

    Attributes:
        body: its bytes.
        compressed: the same by gzip.
        headers: of both.
    """

    body: bytes
    compressed: bytes
    headers: Mapping[str, str]


@cache
def read(issuer: str = "") -> Mapping[str, File]:
    """Return the files by their path below the console's address.

    Args:
        issuer: address of the issuer of tokens that the page may call; empty for none.
    """
    headers = {**_HEADERS, "Content-Security-Policy": policy(issuer)}
    found = _walk(files(__package__) / "files", "")
    return {name: _file(name, entry.read_bytes(), headers) for name, entry in found}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif any(entry.name.endswith(ending) for ending in _TYPES):
            yield f"{prefix}{entry.name}", entry


def _file(name: str, body: bytes, fixed: Mapping[str, str]) -> File:
    # The names of assets have the hash of what they hold; the others stay, and so are asked for again.
    cache = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
    return File(
        body=body,
        compressed=gzip.compress(body, mtime=0),
        headers={
            **fixed,
            "Content-Type": _TYPES[f".{name.rpartition('.')[2]}"],
            "Cache-Control": cache,
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            "Vary": "Accept-Encoding",
        },
    )
