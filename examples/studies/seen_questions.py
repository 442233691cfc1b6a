"""Give the results of two published studies apart by whether the bundled reader was trained on the question.

    python examples/studies/seen_questions.py docs/studies --data DATA

Read the stored rows of questions, and the hashes of training questions beside the reader's weights; write
``fair-rag/utility-seen.csv`` and ``eor/eor-seen.csv``. No model is run.
"""

import argparse
import csv
import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

import evenmesh_models
from evenmesh_core.intervals import mean_interval, student_interval
from evenmesh_core.proportions import wilson_interval
from evenmesh_lab.files.trained_texts import find_trained_texts

PARTS = ("unseen", "seen")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", type=Path, help="folder of the pages and their tables")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    given = parser.parse_args()
    reader = find_trained_texts(evenmesh_models.reader())
    assert reader is not None  # noqa: S101 - it ships with them
    questions = {
        one["id"]: one["question"]
        for name in ("multihop-small/questions", "nq-passages/questions", "squad-open/questions.dev")
        for one in _lines(given.data / f"{name}.jsonl.gz")
    }
    part = {name: PARTS[reader.has_question(asked)] for name, asked in questions.items()}
    _write(
        given.studies / "fair-rag/utility-seen.csv", fair_rag(given.studies / "fair-rag/utility.csv", part)
    )
    _write(given.studies / "eor/eor-seen.csv", eor(given.studies / "eor/eor.csv", part))


def fair_rag(path: Path, part: Mapping[str, str]) -> Iterable[dict[str, object]]:
    """Yield the mean difference of expected utility from no sampling, for each system, α and part."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["eu"]]
    utility = {(row["query_id"], row["system"], row["alpha"]): float(row["eu"]) for row in rows}
    for which in PARTS:
        for system, alpha in dict.fromkeys((row["system"], row["alpha"]) for row in rows if row["alpha"]):
            gained = np.array(
                [
                    value - utility[query, system, ""]
                    for (query, name, dial), value in utility.items()
                    if (name, dial) == (system, alpha) and part[query] == which
                ]
            )
            sparse = 2 * np.count_nonzero(gained == 0) >= len(gained)
            mean = student_interval(gained) if sparse else mean_interval(gained, rng=0)
            values = {"difference": mean.value, "difference_low": mean.low, "difference_high": mean.high}
            yield {"part": which, "system": system, "alpha": alpha, "questions": len(gained), **values}


def eor(path: Path, part: Mapping[str, str]) -> Iterable[dict[str, object]]:
    """Yield the share of right votes of each data set and part, with Wilson's interval."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        for which in PARTS:
            mine = [row for row in rows if row["dataset"] == dataset and part[row["query_id"]] == which]
            if not mine:
                continue
            right = sum(float(row["correct"]) for row in mine)
            low, high = wilson_interval(int(right), len(mine))
            values = {"accuracy": right / len(mine), "accuracy_low": low, "accuracy_high": high}
            yield {"dataset": dataset, "part": which, "questions": len(mine), **values}


def _lines(path: Path) -> Iterable[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        yield from map(json.loads, stream)


def _write(path: Path, rows: Iterable[dict[str, object]]) -> None:
    found = list(rows)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
