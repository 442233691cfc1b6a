"""The tables of docs/studies/price.md, from its plan and the stored records; a test compares them.

``python -m benchmarks.price_study.tables`` computes ``summary.csv`` and ``readers.csv`` from the records and
writes the tables into the page; a minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks import csv_rows
from benchmarks.page import fill, table
from benchmarks.price_study import measures
from benchmarks.price_study.rankings import ALPHAS, FIXED, ORACLE
from benchmarks.price_study.records import OUT, read_answers, read_shown
from benchmarks.price_study.sets import SETS
from benchmarks.shown import adjusted, interval, p_value, three, two
from benchmarks.two_readers import READERS
from evenmesh_lab.files.plans import described, read_plan

MARGIN: Final = 0.015
"""Loss of F1 that H1 and H4 allow, and the width that intervals should have to either side."""
CHANCE: Final = 0.05
_NAMED: Final = tuple(f"{one:g}" for one in ALPHAS)

Row = Mapping[str, str]


def summarize(to: Path = OUT) -> None:
    """Compute ``summary.csv`` and ``readers.csv`` from the records, and write them into a folder."""
    summary: list[dict[str, float | str]] = []
    beside: list[dict[str, float | str]] = []
    for data in SETS:
        shown, found = read_shown(data), {}
        for reader in READERS:
            if answers := read_answers(data, reader):
                found[reader] = measures.read(shown, answers)
                summary += measures.compared(data, reader, found[reader], shown)
        if len(found) == len(READERS):
            beside += measures.between(data, *(found[reader] for reader in READERS))
    csv_rows.write(to / "summary.csv", summary)
    csv_rows.write(to / "readers.csv", beside)


def decided(summary: Sequence[Row]) -> list[dict[str, str]]:
    """Return for each data set, reader and first stage whether H1 to H3 hold there."""
    low = adjusted([row for row in summary if row["dial"] == "1"])
    by_place: dict[tuple[str, str, str], list[tuple[Row, float]]] = defaultdict(list)
    for row, p in adjusted([row for row in summary if row["dial"] in _NAMED]):
        by_place[_place(row)].append((row, p))
    found = []
    for row, p in low:
        dials = by_place[_place(row)]
        at_four = next(one for one, _ in dials if one["dial"] == "4")
        best, best_p = max(dials, key=lambda one: float(one[0]["difference"]))
        found.append(
            {
                "data": row["data"],
                "reader": row["reader"],
                "first stage": row["stage"],
                "questions": row["questions"],
                "H1: EU at 4 − deterministic": interval(at_four),
                "": free(at_four),
                "H2: highest difference": f"α = {best['dial']}: {interval(best)}, {p_value(best_p)}",
                " ": better(dials),
                "H3: EU at 1 − deterministic": f"{interval(row)}, {p_value(p)}",
                "  ": "holds" if float(row["high"]) < 0 and p < CHANCE else "not shown",
            }
        )
    return found


def free(row: Row) -> str:
    """Return whether less than the margin is lost: holds, fails, or open."""
    if float(row["low"]) > -MARGIN:
        return "holds"
    return "fails" if float(row["high"]) < -MARGIN else "open"


def better(dials: Sequence[tuple[Row, float]]) -> str:
    """Return whether any dial is above the deterministic ranking: holds, refuted, or open.

    Args:
        dials: rows with their adjusted p-values.
    """
    if any(float(row["difference"]) > 0 and p < CHANCE for row, p in dials):
        return "holds"
    return "refuted" if all(float(row["high"]) < MARGIN for row, _ in dials) else "open"


def alike(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return for each first stage whether the two readers lose alike (H4)."""
    return [
        {
            "data": row["data"],
            "first stage": row["stage"],
            "questions": row["questions"],
            f"H4: change of {READERS[0]} − change of {READERS[1]}": interval(row),
            "": within(row),
        }
        for row in rows
    ]


def within(row: Row) -> str:
    """Return whether an interval lies within the margin to either side: holds, fails, or open."""
    low, high = float(row["low"]), float(row["high"])
    if low >= -MARGIN and high <= MARGIN:
        return "holds"
    return "fails" if high < -MARGIN or low > MARGIN else "open"


def headroom(summary: Sequence[Row]) -> list[dict[str, str]]:
    """Return for each reader what useful passages first would give (H5)."""
    rows = {(*_place(row), row["dial"]): row for row in summary}
    return [
        {
            "data": row["data"],
            "reader": row["reader"],
            "deterministic bm25": three(rows[*_place(row), FIXED]["eu"]),
            "useful passages first": three(row["eu"]),
            "H5: difference": f"{interval(row)}, {p_value(p)}",
            "": "holds" if float(row["difference"]) > 0 and p < CHANCE else "not shown",
        }
        for row, p in adjusted([row for row in summary if row["dial"] == ORACLE])
    ]


def levels(summary: Sequence[Row]) -> list[dict[str, str]]:
    """Return what each dial gives, over all questions and over those with a reachable utility."""
    return [
        {
            "data": row["data"],
            "reader": row["reader"],
            "first stage": row["stage"],
            "dial": row["dial"],
            "EE-D": two(row["ee_d"]),
            "EE-R": two(row["ee_r"]),
            "F1": three(row["eu"]),
            "exact match": three(row["exact"]),
            "F1 − deterministic": "" if row["dial"] == FIXED else interval(row),
            "questions that differ": "" if row["dial"] == FIXED else row["differ"],
            "reachable": row["reachable"],
            "F1 − deterministic, reachable": "" if row["dial"] == FIXED else interval(row, "reachable_"),
        }
        for row in summary
        if row["dial"] != ORACLE
    ]


def labelled(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return exposure by gold and by utility labels: means over the questions that have both kinds.

    Args:
        rows: of ``labels.csv``.
    """
    by_place: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if int(row["gold"]) and int(row["utility"]):
            by_place[row["stage"], row["dial"]].append(row)
    return [
        {
            "first stage": stage,
            "dial": dial,
            "questions": str(len(some)),
            "gold passages": two(_mean(some, "gold")),
            "passages that help": two(_mean(some, "utility")),
            "of both kinds": two(_mean(some, "both")),
            "EE-R, gold": two(_mean(some, "relevance_gold")),
            "EE-R, utility": two(_mean(some, "relevance_utility")),
        }
        for (stage, dial), some in by_place.items()
    ]


def asked(summary: Sequence[Row]) -> dict[str, int]:
    """Return how many questions of each data set every reader answered."""
    by_reader: dict[str, dict[str, int]] = defaultdict(dict)
    for row in summary:
        known = by_reader[row["data"]]
        known[row["reader"]] = max(known.get(row["reader"], 0), int(row["questions"]))
    return {
        data: min(known.values()) if len(known) == len(READERS) else 0 for data, known in by_reader.items()
    }


def tables() -> dict[str, str]:
    """Return every table of the page by its name there."""
    summary, readers = csv_rows.read(OUT / "summary.csv"), csv_rows.read(OUT / "readers.csv")
    labels = csv_rows.read(OUT / "labels.csv")
    return {
        "plan": described(read_plan(OUT / "plan.toml"), asked(summary)),
        "decided": table(decided(summary)),
        "alike": table(alike(readers)),
        "headroom": table(headroom(summary)),
        **({"labels": table(labelled(labels))} if labels else {}),
        "levels": table(levels(summary)),
    }


def main() -> None:
    """Compute the numbers and write the tables into the page."""
    summarize()
    fill(OUT.with_suffix(".md"), tables())


def _mean(rows: Sequence[Row], name: str) -> str:
    return str(sum(float(row[name]) for row in rows) / len(rows))


def _place(row: Row) -> tuple[str, str, str]:
    return row["data"], row["reader"], row["stage"]


if __name__ == "__main__":
    main()
