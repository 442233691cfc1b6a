"""The numbers of the pages in docs/studies are those of the tables stored beside them.

The tables of a page are made again from the stored records and compared (those of ablations, agents, exposure, gfrc, over-time,
price and votes by the tests of their studies). Every other interval of a page that stands behind its value is
found as value, low and high in one row of a stored table, in this direction or the other, as a share or in per
cent. Every other number with a decimal point is found as some value of a summary table (p-values among p-values); this last rule
finds what was never there, and not every slip of a digit. What is stored nowhere is listed below with its reason,
and no longer than needed.
"""

from __future__ import annotations

import csv
import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.page import placed
from benchmarks.study_pages import fair_rag
from benchmarks.study_pages.__main__ import PAGES
from benchmarks.study_pages.cells import STUDIES

STORED = ("eor", "fair-rag", "ium", "rag")
"""Studies of which each interval has a row."""
MADE_ELSEWHERE = ("ablations", "agents", "exposure", "gfrc", "over-time", "price", "votes")
"""Studies whose tables are made and compared by their own modules."""
STUDIED = (*STORED, *MADE_ELSEWHERE)
IN_PER_CENT = ("ablations", "eor", "rag", "votes")
"""Pages whose shares are in per cent throughout."""

NUMBER = r"[−+-]?\d[\d,]*(?:\.\d+)?(?:e[−-]?\d+)?"
INTERVAL = re.compile(rf"(?<![\w.\[])({NUMBER})(?: points| %)? \[\s*({NUMBER}),\s*({NUMBER})\]")
ENDS = re.compile(rf"\[\s*({NUMBER}),\s*({NUMBER})\]")
CELL = re.compile(rf"^\**({NUMBER})\**$")
PROSE = re.compile(r"(?<![\w.@/-])([−+-]?\d[\d,]*\.\d+)(?![\d.]*[\w-])")
MADE = re.compile(r"<!-- \w+ -->.*?<!-- end -->", re.DOTALL)
P_VALUE = re.compile(r"(^|_)p(_|$)")
END = re.compile(r"(^|_)(low|high|undefined)$")
SPAN = re.compile(r"\[[^]]*\]|\([^)]*\)")
PER_CENT = re.compile(r"( \[[^]]*\])?( to [−\d.]+)? ?(%|points?\b)")

UNSTORED = {
    # the processor's GHz
    "over-time": {"2.5"},
    # a difference of two rows of the poolings: equal weights against learned ones, 2 of 82 questions
    "eor": {"2.4"},
    # a ratio of two rows of the summary: bm25-lucene's oracle over its deterministic ranking, 0.599 / 0.318
    "fair-rag": {"1.9"},
    # the paper's gain on NQ, its own number
    "rag": {"2.6"},
    "ium": {
        # the choice of the learning rate: the held back queries' rankings were not kept
        *("0.804", "0.878", "0.928", "0.911", "0.944", "0.975"),
        *("0.825", "0.886", "0.934", "0.884", "0.935", "0.971"),
        # claims as a stream: the runs were not kept
        *("0.218", "0.196", "0.211", "0.207", "0.271", "0.064", "[0.021, 0.121]"),
        # SQuAD's questions ranked by offline IUM alone, nDCG@10: of the run that made the model
        *("0.848", "0.890", "0.872", "0.888"),
    },
}
"""Numbers of a page that no stored table has, as they stand there, and why."""


def _number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").lstrip("+"))


def _decimals(text: str) -> int:
    return len(text.partition(".")[2]) if "e" not in text else 0


def _rows(name: str) -> Iterator[tuple[Path, list[dict[str, str]]]]:
    for path in sorted((STUDIES / name).glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            yield path, list(csv.DictReader(stream))


@cache
def intervals(name: str) -> tuple[tuple[float, float, float], ...]:
    """All values of a study's tables that have an interval."""
    found = []
    for _, rows in _rows(name):
        for row in rows:
            numbers = {key: float(cell) for key, cell in row.items() if _is_number(cell)}
            found += [
                (numbers[key], numbers[f"{key}_low"], numbers[f"{key}_high"])
                for key in numbers
                if f"{key}_low" in numbers and f"{key}_high" in numbers
            ]
    if name == "fair-rag":
        prices = [fair_rag.price(*key, gained) for key, gained in fair_rag.gains().items()]
        found += [(one.value, one.low, one.high) for one in prices]
    return tuple(found)


@cache
def values(name: str, *, p: bool = False) -> tuple[float, ...]:
    """All values of a study's summary tables, in order, without ends of intervals; or all p-values."""
    found = [one for one, _, _ in intervals(name)] if name == "fair-rag" and not p else []
    for _, rows in _rows(name):
        # Among the rows of single queries nearly every number would be found.
        if not {"query_id", "topic", "query"} & set(rows[0]):
            columns = [
                key for key in rows[0] if (P_VALUE.search(key) is not None) == p and not END.search(key)
            ]
            cells = [cell for row in rows for key in columns for cell in _split(key, row[key])]
            found += [float(cell) for cell in cells if _is_number(cell)]
    for path in sorted((STUDIES / name).glob("*.json")):
        if not path.name.startswith("weights") and not p:
            found += _leaves(json.loads(path.read_text(encoding="utf-8")))
    if name in MADE_ELSEWHERE:
        lines = [line for line in _page(name).splitlines() if line.startswith("|")]
        shown = [SPAN.sub("", line) for line in lines]
        found += [_number(one) for line in shown for one in re.findall(NUMBER, line)]
    return tuple(sorted(one for one in found if one == one))


def _split(column: str, cell: str) -> list[str]:
    """Return the numbers of a cell: several, if it has one of each seed."""
    return cell.split() if column == "by_seed" else [cell]


def _leaves(tree: object) -> list[float]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, list):
        return [number for branch in tree for number in _leaves(branch)]
    return [float(tree)] if isinstance(tree, int | float) else []


def _page(name: str) -> str:
    text = (STUDIES / f"{name}.md").read_text(encoding="utf-8")
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _is_number(cell: str | None) -> bool:
    try:
        return cell is not None and float(cell) == float(cell)
    except ValueError:
        return False


def _equal(shown: str, value: float) -> bool:
    return abs(_number(shown) - value) <= 0.5 * 10 ** -_decimals(shown) + 1e-9


def _held(shown: tuple[str, str, str], name: str) -> bool:
    for value, low, high in intervals(name):
        for scale in (1.0, 100.0):
            for found in ((value, low, high), (-value, -high, -low)):
                if all(_equal(text, scale * one) for text, one in zip(shown, found, strict=True)):
                    return True
    return False


def _ends(low: str, high: str, name: str) -> bool:
    """Whether an interval apart from its value is one of the study's."""
    return any(
        _equal(low, scale * one) and _equal(high, scale * other)
        for _, *found in intervals(name)
        for scale in (1.0, 100.0)
        for one, other in (found, [-end for end in reversed(found)])
    )


def _stored_value(shown: str, name: str, *, per_cent: bool, p: bool = False) -> bool:
    """Whether a number is one of the study's values, up to its sign, or of its p-values."""
    stored = values(name, p=p and name in STORED)
    for scale in (1, -1, 100, -100) if per_cent else (1, -1):
        wanted, slack = _number(shown) / scale, (0.5 * 10 ** -_decimals(shown) + 1e-9) / abs(scale)
        at = bisect_left(stored, wanted - slack)
        if at < len(stored) and stored[at] <= wanted + slack:
            return True
    return False


def cells(page: str) -> Iterator[str]:
    """Numbers of the tables that stand alone in their cells, without their headings."""
    lines = page.splitlines()
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("|") and before.startswith("|") and not line.startswith("|--"):
            for cell in line.strip("|").split("|"):
                if found := CELL.match(cell.strip().removesuffix(" %")):
                    yield found[1]


def prose(page: str) -> Iterator[tuple[str, bool, bool]]:
    """Numbers with a decimal point outside tables, code and links; whether in per cent, whether p-values."""
    lines = " ".join(line for line in page.splitlines() if not line.startswith("|"))
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", lines.replace("**", "")))
    for found in PROSE.finditer(text):
        p = re.search(
            r"(\bp( is)?|adjusted|adjusted for[^.;]*|p = [\d.]+ and) (= )?\(?(p = )?$", text[: found.start()]
        )
        yield found[1], PER_CENT.match(text, found.end()) is not None, p is not None


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_tables_of_a_page_are_made_of_its_records(name: str) -> None:
    page = (STUDIES / f"{name}.md").read_text(encoding="utf-8")
    assert placed(page, PAGES[name].tables()) == page


@pytest.mark.parametrize("name", STUDIED)
def test_every_number_of_a_page_is_stored(name: str) -> None:
    text, missing = _page(name), []
    if name in STORED:
        flat = " ".join(text.replace("**", "").split())
        shown = [found.groups() for found in INTERVAL.finditer(flat)]
        assert shown
        missing += [f"{one[0]} [{one[1]}, {one[2]}]" for one in shown if not _held(one, name)]
    text = MADE.sub("", text)
    if name in STORED:
        text = INTERVAL.sub("interval", text)
        missing += [f"[{low}, {high}]" for low, high in ENDS.findall(text) if not _ends(low, high, name)]
        text = ENDS.sub("interval", text)
        missing += [one for one in cells(text) if not _stored_value(one, name, per_cent=name in IN_PER_CENT)]
    missing += [
        one
        for one, per_cent, p in prose(text)
        if not _stored_value(one, name, per_cent=(per_cent or name in IN_PER_CENT) and not p, p=p)
    ]
    assert sorted(set(missing) ^ UNSTORED.get(name, set())) == []
