"""The page of measurements: sections that are replaced one by one, each with its machine and its date."""

from __future__ import annotations

import datetime
import itertools
import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from evenmesh_lab.machine import cpu_name

PATH = Path(__file__).resolve().parents[1] / "docs" / "science" / "benchmarks.md"
_HEADING = re.compile(r"^## .*$", re.MULTILINE)


def stamp(load_before: float, packages: Sequence[str]) -> str:
    """When, on what and with what a section was measured."""
    memory = psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"_{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores ({cpu_name()}), "
        f"{memory:.0f} GiB, Python {platform.python_version()}, {versions}; load before: {load_before:.1f}._"
    )


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows of cells by heading in Markdown; the first decides about the columns."""
    head = [" | ".join(rows[0]), "|".join(["---"] * len(rows[0]))]
    return "\n".join([f"| {head[0]} |", f"|{head[1]}|", *(f"| {' | '.join(row.values())} |" for row in rows)])


def write(sections: Mapping[str, str], path: Path = PATH) -> None:
    """Replace the sections of the page by heading, add those that are new, and keep all others."""
    text = path.read_text(encoding="utf-8") if path.exists() else "# Benchmarks\n"
    places = [match.start() for match in _HEADING.finditer(text)]
    head = text[: places[0]] if places else text
    kept = {}
    for start, end in itertools.pairwise([*places, len(text)]):
        heading, _, body = text[start:end].partition("\n")
        kept[heading.removeprefix("## ")] = body.strip()
    kept |= {heading: body.strip() for heading, body in sections.items()}
    body = "".join(f"\n## {heading}\n\n{content}\n" for heading, content in kept.items())
    path.write_text(head.rstrip() + "\n" + body, encoding="utf-8")


def fill(path: Path, found: Mapping[str, str]) -> None:
    """Write tables into their places in a page; see :func:`placed`."""
    path.write_text(placed(path.read_text(encoding="utf-8"), found), encoding="utf-8")


def placed(page: str, found: Mapping[str, str]) -> str:
    """Return the page with tables in their places, between `<!-- NAME -->` and `<!-- end -->`.

    One that has no place gets it at the end.
    """
    for name, text in found.items():
        mark, end = f"<!-- {name} -->", "<!-- end -->"
        if mark not in page:
            page += f"\n## {name}\n\n{mark}\n{end}\n"
        begin = page.index(mark)
        page = f"{page[:begin]}{mark}\n\n{text}\n\n{page[page.index(end, begin) :]}"
    return page
