"""docs/studies/rag.md, from the tables of its run."""

from __future__ import annotations

from typing import Final

from benchmarks.page import table
from benchmarks.study_pages.cells import STUDIES, percent_interval, plan_of, read, where
from benchmarks.study_pages.scores import score

FOLDER: Final = STUDIES / "rag"
SYSTEMS: Final = {
    "hybrid": "hybrid",
    "hybrid + cross-encoder": "hybrid, ranked by `cross-encoder` (default)",
    "hybrid + rankrag": "hybrid, ranked by `rankrag`",
}
RANKED: Final = {"hybrid + cross-encoder": "`cross-encoder`", "hybrid + rankrag": "`rankrag`"}


def refresh() -> None:
    """Compute score intervals and adjusted p-values again from the stored counts."""
    score(FOLDER / "answers-summary.csv", shares=("exact_match", "accuracy"))
    score(FOLDER / "answers-comparisons.csv", family=("measure",))


def tables() -> dict[str, str]:
    """Return the tables of the page by their names there."""
    return {"plan": plan_of(FOLDER), "answers": table(_answers()), "gains": table(_gains())}


def _answers() -> list[dict[str, str]]:
    summary, recall = read(FOLDER / "answers-summary.csv"), read(FOLDER / "answers-answer-recall.csv")
    found = []
    for system, name in SYSTEMS.items():
        row = where(summary, system=system)
        answers = {"EM": "exact_match", "F1": "token_f1", "accuracy": "accuracy"}
        ranked, column = ("hybrid + rankrag", "before") if system == "hybrid" else (system, "after")
        depths = {"answer recall@5": "5", "@10": "10", "@20": "20"}
        found.append(
            {"": name}
            | {shown: percent_interval(row, one) for shown, one in answers.items()}
            | {
                shown: percent_interval(where(recall, ranking=ranked, depth=depth), column)
                for shown, depth in depths.items()
            }
        )
    return found


def _gains() -> list[dict[str, str]]:
    pairs, answer, gold = (
        read(FOLDER / f"answers-{name}.csv") for name in ("comparisons", "answer-recall", "gold-recall")
    )
    found = []
    for system, name in RANKED.items():
        line = {"ranked by": name}
        for measure in ("EM", "F1"):
            row = where(pairs, measure=measure, first="hybrid", second=system)
            line[measure] = percent_interval(row, "difference", factor=-1, sign=True)
        for measure, rows in (("answer recall@5", answer), ("gold recall@5", gold)):
            row = where(rows, ranking=system, depth="5")
            line[measure] = percent_interval(row, "difference", sign=True)
        found.append(line)
    return found
