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

PATH = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
_HEADING = re.compile(r"^## .*$", re.MULTILINE)


def stamp(load_before: float, packages: Sequence[str]) -> str:
    """When, on what and with what a section was measured."""
    memory = psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"_{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores ({_cpu()}), "
        f"{memory:.0f} GiB, Python {platform.python_version()}, {versions}; load before: {load_before:.1f}._"
    )


def write(sections: Mapping[str, str], path: Path = PATH) -> None:
    """Replaces the sections of the page by heading, adds those that are new, and keeps all others."""
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


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")
