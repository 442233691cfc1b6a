"""Results apart by whether the bundled reader was trained on the question.

Reads the stored rows of questions, and the hashes of training questions beside the reader's weights; the data
sets give the questions' texts. No model is run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

import evenmesh_models
from benchmarks.shared_data import rows as rows_of
from benchmarks.study_pages import eor, fair_rag
from benchmarks.study_pages.cells import read, write
from evenmesh_core.proportions import wilson_interval
from evenmesh_lab.files.trained_texts import find_trained_texts

PARTS: Final = ("unseen", "seen")
FILES: Final = ("multihop-small/questions", "nq-passages/questions", "squad-open/questions.dev")


def write_seen(study: str, data: Path) -> None:
    """Write the table of unseen and seen questions of ``fair-rag`` or ``eor``.

    Args:
        study: its name; others have no such table.
        data: folder of the data sets.
    """
    reader = find_trained_texts(evenmesh_models.reader())
    if reader is None:
        raise FileNotFoundError("the bundled reader has no hashes of what it was trained on")
    questions = {one["id"]: one["question"] for name in FILES for one in rows_of(data / f"{name}.jsonl.gz")}
    part = {name: PARTS[reader.has_question(asked)] for name, asked in questions.items()}
    if study == "fair-rag":
        write(fair_rag.FOLDER / "utility-seen.csv", _gains(part))
    elif study == "eor":
        write(eor.FOLDER / "eor-seen.csv", _votes(part))


def _gains(part: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """Yield the mean difference of expected utility from no sampling, for each system, α and part."""
    for which in PARTS:
        for (system, alpha), gained in fair_rag.gains().items():
            mine = {query: value for query, value in gained.items() if part[query] == which}
            mean = fair_rag.price(system, alpha, mine)
            ends = {"difference": mean.value, "difference_low": mean.low, "difference_high": mean.high}
            shown = {name: "" if np.isnan(value) else value for name, value in ends.items()}
            yield {"part": which, "system": system, "alpha": alpha, "questions": len(mine), **shown}


def _votes(part: Mapping[str, str]) -> Iterator[dict[str, object]]:
    """Yield the share of right votes of each data set and part, with Wilson's interval."""
    rows = read(eor.FOLDER / "eor.csv")
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        for which in PARTS:
            mine = [row for row in rows if row["dataset"] == dataset and part[row["query_id"]] == which]
            if mine:
                right = sum(float(row["correct"]) for row in mine)
                low, high = wilson_interval(int(right), len(mine))
                values = {"accuracy": right / len(mine), "accuracy_low": low, "accuracy_high": high}
                yield {"dataset": dataset, "part": which, "questions": len(mine), **values}
