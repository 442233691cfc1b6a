"""The numbers of the pages in docs/studies are those of the tables stored beside them.

Every interval of a page that stands behind its value, in tables and in text, is found as value, low and high in one row of a stored
table, in this direction or the other, as a share or in per cent. Every other number in a table of a page is
found as some value. What is stored nowhere is listed below, and no longer than needed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from evenmesh_core.intervals import mean_interval, student_interval

FOLDER = Path(__file__).parents[3] / "docs/studies"
STORED = ("eor", "fair-rag", "ium", "rag")
"""Studies whose pages are written by hand; those of exposure, gfrc and over-time are made of their numbers."""

NUMBER = r"[−+-]?\d[\d,]*(?:\.\d+)?(?:e[−-]?\d+)?"
INTERVAL = re.compile(rf"(?<![\w.\[])({NUMBER})(?: points| %)? \[\s*({NUMBER}),\s*({NUMBER})\]")
CELL = re.compile(rf"^\**({NUMBER})\**$")

UNSTORED = {
    # of runs whose records were not kept: the choice of the learning rate, and claims as a stream
    "ium": {
        *("0.804", "0.878", "0.928", "0.911", "0.944", "0.975"),
        *("0.825", "0.934", "0.884", "0.935", "0.218", "0.196", "0.211"),
    }
}
"""Numbers in the tables of a page that no stored table has, as they stand there."""


def _number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").lstrip("+"))


def _decimals(text: str) -> int:
    return len(text.partition(".")[2]) if "e" not in text else 0


@cache
def stored(name: str) -> tuple[tuple[float, ...], tuple[tuple[float, float, float], ...]]:
    """All values of a study's tables, and all that have an interval."""
    values: list[float] = []
    intervals: list[tuple[float, float, float]] = []
    for path in sorted((FOLDER / name).glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                found = {key: float(cell) for key, cell in row.items() if _is_number(cell)}
                values += found.values()
                intervals += [
                    (found[key], found[f"{key}_low"], found[f"{key}_high"])
                    for key in found
                    if f"{key}_low" in found and f"{key}_high" in found
                ]
    if name == "fair-rag":
        intervals += _prices()
    return tuple(values), tuple(intervals)


def _prices() -> Iterator[tuple[float, float, float]]:
    """Differences of utility from no sampling, of the rows of queries: examples/studies/price_of_fairness.py."""
    with (FOLDER / "fair-rag/utility.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["eu"]]
    utility = {(row["query_id"], row["system"], row["alpha"]): float(row["eu"]) for row in rows}
    for system, alpha in dict.fromkeys((row["system"], row["alpha"]) for row in rows if row["alpha"]):
        gained = np.array(
            [
                value - utility[query, system, ""]
                for (query, name, dial), value in utility.items()
                if (name, dial) == (system, alpha) and (query, system, "") in utility
            ]
        )
        sparse = 2 * np.count_nonzero(gained == 0) >= len(gained)
        mean = student_interval(gained) if sparse else mean_interval(gained, rng=0)
        yield mean.value, mean.low, mean.high


def _is_number(cell: str | None) -> bool:
    try:
        return cell is not None and float(cell) == float(cell)
    except ValueError:
        return False


def _equal(shown: str, value: float) -> bool:
    digits = _decimals(shown)
    return abs(_number(shown) - value) <= 0.5 * 10**-digits + 1e-9


def _held(shown: tuple[str, str, str], name: str) -> bool:
    for value, low, high in stored(name)[1]:
        for scale in (1.0, 100.0):
            for found in ((value, low, high), (-value, -high, -low)):
                if all(_equal(text, scale * one) for text, one in zip(shown, found, strict=True)):
                    return True
    return False


def _stored_value(shown: str, name: str) -> bool:
    return any(
        _equal(shown, scale * value) for value in stored(name)[0] for scale in (1.0, -1.0, 100.0, -100.0)
    )


def cells(page: str) -> Iterator[str]:
    """Numbers of the tables that stand alone in their cells, without their headings."""
    lines = page.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("|") and before.startswith("|") and not line.startswith("|--"):
            for cell in line.strip("|").split("|"):
                if found := CELL.match(cell.strip().removesuffix(" %")):
                    yield found[1]


@pytest.mark.parametrize("name", STORED)
def test_every_interval_and_every_number_of_a_table_is_stored(name: str) -> None:
    text = re.sub(r"```.*?```", "", (FOLDER / f"{name}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    flat = " ".join(text.replace("**", "").split())
    intervals = [found.groups() for found in INTERVAL.finditer(flat)]
    assert intervals
    missing = [f"{one[0]} [{one[1]}, {one[2]}]" for one in intervals if not _held(one, name)]
    missing += [one for one in cells(text) if not _stored_value(one, name)]
    assert sorted(set(missing) ^ UNSTORED.get(name, set())) == []
