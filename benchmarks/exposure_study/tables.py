"""The tables of docs/studies/exposure.md, from its plan and the numbers beside it; a test compares them.

``python -m benchmarks.exposure_study.tables`` writes them into the page, and draws the figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks import csv_rows
from benchmarks.exposure_study.__main__ import OUT, TRACK
from benchmarks.exposure_study.measures import ALPHAS, FIXED, GROUPS
from benchmarks.exposure_study.track import BY_ID
from benchmarks.over_time.drawing import draw
from benchmarks.page import fill, table
from benchmarks.shown import adjusted, interval, p_value, signed, three, two
from evenmesh_lab.files.plans import described, read_plan

MARGIN: Final = 0.03
"""Loss of EE-R that H2 allows."""
CHANCE: Final = 0.05
_STEEPNESS: Final = "8 − 1"
_NAMED: Final = tuple(f"{one:g}" for one in ALPHAS)

Row = Mapping[str, str]


def decided(summary: Sequence[Row]) -> list[dict[str, str]]:
    """Return for each first stage whether the claims H1 to H3 hold there."""
    steep = adjusted([row for row in summary if row["dial"] == _STEEPNESS])
    above = adjusted([row for row in summary if _number(row["dial"]) in ALPHAS])
    by_system: dict[tuple[str, str], list[tuple[Row, float]]] = defaultdict(list)
    for row, p in above:
        by_system[row["data"], row["system"]].append((row, p))
    found = []
    for row, p in steep:
        dials = by_system[row["data"], row["system"]]
        at_four = next(one for one, _ in dials if _number(one["dial"]) == 4)
        best, best_p = max(dials, key=lambda one: float(one[0]["difference"]))
        found.append(
            {
                "data": row["data"],
                "first stage": row["system"],
                "queries": f"{int(at_four['queries']):,}",
                "H1: EE-R at 8 − at 1": f"{interval(row)}, {p_value(p)}",
                "": _verdict(float(row["difference"]) > 0 and p < CHANCE),
                "H2: EE-R at 4 − deterministic": interval(at_four),
                " ": _free(at_four),
                "H3: highest difference": f"α = {best['dial']}: {interval(best)}, {p_value(best_p)}",
                "  ": _verdict(any(float(one["difference"]) > 0 and p < CHANCE for one, p in dials)),
            }
        )
    return found


def levels(summary: Sequence[Row]) -> list[dict[str, str]]:
    """Return disparity and relevance of each first stage at each dial."""
    by_system: dict[tuple[str, str], dict[str, Row]] = defaultdict(dict)
    for row in summary:
        by_system[row["data"], row["system"]][row["dial"]] = row
    return [
        {"data": data, "first stage": system}
        | {
            (dial if dial == FIXED else f"α = {dial}"): " / ".join(
                two(rows[dial][one]) for one in ("ee_d", "ee_r")
            )
            for dial in (*_NAMED, FIXED)
        }
        for (data, system), rows in by_system.items()
    ]


def wordings(groups: Sequence[Row]) -> list[dict[str, str]]:
    """Return the exposure of each wording, and the gap between two of them."""
    p_values = {id(row): p for row, p in adjusted([row for row in groups if _number(row["dial"]) in ALPHAS])}
    return [
        {
            "first stage": row["system"],
            "α": row["dial"],
            **{group: two(row[group]) for group in GROUPS},
            "female − male": signed(row["signed"])
            + f" [{signed(row['signed_low'])}, {signed(row['signed_high'])}]",
            "mean gap of a query": three(row["gap"]),
            "gap − deterministic": ""
            if row["dial"] == FIXED
            else f"{interval(row)}, {p_value(p_values[id(row)])}",
        }
        for row in groups
    ]


def amortized(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the track's measures, a line for each ranking."""
    dials: dict[str, dict[str, str]] = {}
    for row in rows:
        line = dials.setdefault(
            row["dial"], {"ranking": _ranking(row["dial"]), "utility": three(row["utility"])}
        )
        line[f"unfairness, {row['groups']}"] = f"{float(row['unfairness']):.4f}"
    return list(dials.values())


def asked(summary: Sequence[Row], rows: Sequence[Row]) -> dict[str, int]:
    """Return how many queries of each data set had a relevant item in one of its first stages."""
    found: dict[str, int] = {}
    for row in summary:
        if row["queries"]:
            found[row["data"]] = max(found.get(row["data"], 0), int(row["queries"]))
    if rows:
        found[TRACK] = int(rows[0]["queries"])
    return found


def tables() -> dict[str, str]:
    """Return every table of the page by its name there."""
    summary, groups, rows = (
        csv_rows.read(OUT / "summary.csv"),
        csv_rows.read(OUT / "groups.csv"),
        csv_rows.read(OUT / "track.csv"),
    )
    plan = described(read_plan(OUT / "plan.toml"), asked(summary, rows))
    return {
        "plan": plan,
        "decided": table(decided(summary)),
        "levels": table(levels(summary)),
        "wordings": table(wordings(groups)),
        "track": table(amortized(rows)),
    }


def main() -> None:
    """Write the tables into the page, and draw relevance over disparity."""
    fill(OUT.with_suffix(".md"), tables())
    points: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    for row in csv_rows.read(OUT / "summary.csv"):
        if row["system"] in ("hybrid", "BM25") and row["ee_d"]:
            relevance = float(row["ee_r"])
            points[row["data"]].append((float(row["ee_d"]), relevance, relevance, relevance))
    ordered = {name: sorted(some) for name, some in points.items()}
    draw(OUT / "relevance-disparity.svg", ordered, x="normalised EE-D", y="normalised EE-R")


def _number(dial: str) -> float | None:
    return None if dial in (FIXED, _STEEPNESS) else float(dial)


def _verdict(holds: bool) -> str:
    return "holds" if holds else "not shown"


def _free(row: Row) -> str:
    if float(row["low"]) > -MARGIN:
        return "holds"
    return "fails" if float(row["high"]) < -MARGIN else "open"


def _ranking(dial: str) -> str:
    return "relevant first, equal ones by id" if dial == BY_ID else f"α = {dial}"


if __name__ == "__main__":
    main()
