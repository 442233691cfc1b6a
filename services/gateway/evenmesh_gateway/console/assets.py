"""The built files of the console, with the headers that keep a page to its own origin."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

INDEX: Final = "index.html"
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # ticks and arrows of form fields stand in the style sheet
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every file: no script, style or request of another origin, and no page that frames this one."""


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


def read() -> dict[str, File]:
    """Return the files by their path below the console's address."""
    return {name: _file(name, entry.read_bytes()) for name, entry in _walk(files(__package__) / "files", "")}


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        elif any(entry.name.endswith(ending) for ending in _TYPES):
            yield f"{prefix}{entry.name}", entry


def _file(name: str, body: bytes) -> File:
    # The names of assets have the hash of what they hold; the others stay, and so are asked for again.
    cache = "public, max-age=31536000, immutable" if name.startswith("assets/") else "no-cache"
    return File(
        body=body,
        compressed=gzip.compress(body, mtime=0),
        headers={
            **HEADERS,
            "Content-Type": _TYPES[f".{name.rpartition('.')[2]}"],
            "Cache-Control": cache,
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            "Vary": "Accept-Encoding",
        },
    )
