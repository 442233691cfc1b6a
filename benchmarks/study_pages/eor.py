"""docs/studies/eor.md, from the tables of its run."""

from __future__ import annotations

from itertools import product
from typing import Final

from benchmarks.page import table
from benchmarks.study_pages.cells import STUDIES, Row, fixed, percent, percent_interval, plan_of, read, where
from benchmarks.study_pages.scores import score

FOLDER: Final = STUDIES / "eor"
DATA: Final = ("squad", "nq")
SIZES: Final = {"squad": 63, "nq": 82}
"""Test questions of each data set, for tables that do not count them."""
ERRORS: Final = {
    "retriever_error": "retriever error",
    "hallucination_error": "hallucination",
    "extraction_error": "extraction error",
    "lucky_guess": "lucky guess",
}
SHOWN: Final = ("Lex@1", "Lex@5", "Dense@1", "Dense@5")
"""Retrievers whose errors stand on the page."""
POOLS: Final = {"1": "a perfect vote of 1", "2": "of 2", "4": "of 4", "8": "of 8", "17": "of all 17"}


def refresh() -> None:
    """Compute score intervals and adjusted p-values again from the stored counts."""
    shares = ["accuracy", "exact_match", "test", *ERRORS]
    for name in ("main", "comparisons", "errors", "poolings", "retrievers", "splits"):
        score(FOLDER / f"eor-{name}.csv", shares=shares, sizes=SIZES)


def tables() -> dict[str, str]:
    """Return the tables of the page by their names there."""
    return {
        "plan": plan_of(FOLDER),
        "seen": table(_seen()),
        "main": table(_main()),
        "comparisons": table(_comparisons()),
        "bounds": table(_bounds()),
        "poolings": table(_poolings()),
        "errors": table(_errors()),
    }


def _read(name: str) -> list[Row]:
    return read(FOLDER / f"eor-{name}.csv")


def _seen() -> list[dict[str, str]]:
    return [
        {
            "data set": row["dataset"],
            "test questions": row["part"],
            "how many": row["questions"],
            "EoR, accuracy": percent_interval(row, "accuracy"),
        }
        for row in _read("seen")
    ]


def _main() -> list[dict[str, str]]:
    return [
        {
            "data set": row["dataset"],
            "retriever": "**EoR**" if row["who"] == "EoR" else row["who"],
            "which is": row["chosen"],
            "accuracy": percent_interval(row, "accuracy"),
            "exact match": percent_interval(row, "exact_match"),
            "mean lose ratio": percent_interval(row, "mrlr"),
        }
        for row in _read("main")
    ]


def _comparisons() -> list[dict[str, str]]:
    return [
        {
            "data set": row["dataset"],
            "EoR against": row["who"],
            "which is": row["chosen"],
            "EoR − retriever, points": percent_interval(row, "difference"),
            "p, paired bootstrap": fixed(row["p_value"], 2),
            "right alone: EoR / retriever": f"{row['only_first']} / {row['only_second']}",
            "p, McNemar": fixed(row["mcnemar_p"], 2),
            "p, Holm": fixed(row["p_holm"], 2),
        }
        for row in _read("comparisons")
    ]


def _bounds() -> list[dict[str, str]]:
    rows = _read("upper-bounds")
    return [
        {"data set": data}
        | {name: percent(where(rows, dataset=data, retrievers=size)["mean"]) for size, name in POOLS.items()}
        for data in DATA
    ]


def _poolings() -> list[dict[str, str]]:
    rows = _read("poolings")
    names = dict.fromkeys((row["pooling"], row["weights"]) for row in rows)
    return [
        {"pooling": pooling, "weights": weights}
        | {
            data: percent_interval(where(rows, dataset=data, pooling=pooling, weights=weights), "test")
            for data in DATA
        }
        for pooling, weights in names
    ]


def _errors() -> list[dict[str, str]]:
    rows = _read("errors")
    found = [where(rows, dataset=data, who=who) for data, who in product(DATA, SHOWN)]
    return [
        {"data set": row["dataset"], "retriever": row["who"]}
        | {shown: percent_interval(row, name) for name, shown in ERRORS.items()}
        for row in found
    ]
