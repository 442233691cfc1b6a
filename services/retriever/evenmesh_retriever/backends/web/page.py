"""Hold a fetched page and its text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it came: its bytes, perhaps cut, its content type without parameters, and the encoding that
    its server names."""

    body: bytes
    kind: str
    encoding: str | None


@dataclass(frozen=True, slots=True)
class Text:
    """A page's text; ``date`` (ISO 8601) and ``language`` (as the page declares it) may be empty."""

    title: str
    body: str
    date: str = ""
    language: str = ""
