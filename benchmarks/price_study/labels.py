"""Ask the bundled reader for an answer from each passage alone, and what exposure is by these utility labels.

``python -m benchmarks.price_study.labels --questions 100`` writes ``labels.csv``: a row for each question,
first stage and dial of bioasq-golden; continues where it was stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Set
from pathlib import Path
from typing import Final

import torch

from benchmarks import csv_rows, two_readers
from benchmarks.price_study.rankings import pools, shown
from benchmarks.price_study.records import OUT
from benchmarks.price_study.sets import SETS
from benchmarks.rerank_table.scoring import FirstStages
from evenmesh_core.text_metrics import token_f1

SET: Final = "bioasq-golden"
QUESTIONS: Final = 100
PATH: Final = OUT / "labels.csv"


def main() -> None:
    """Label the pools of the first questions."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.price_study.labels", description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("build/price-study"), help="for vectors and models")
    parser.add_argument("--questions", type=int, default=QUESTIONS, help=f"default: {QUESTIONS}")
    given = parser.parse_args()
    torch.set_num_threads(1)
    asked = SETS[SET]()
    stages = FirstStages(asked.judged, given.home)
    rows: list[dict[str, object]] = [dict(row) for row in csv_rows.read(PATH)]
    known = {row["question"] for row in rows}
    with two_readers.reading(two_readers.READERS[0], given.home) as model:
        for query in asked.order[: given.questions]:
            if query in known:
                continue
            of_stage = pools(stages.found(query))
            items = sorted({one for pool in of_stage.values() for one in pool})
            text, accepted = asked.judged.queries[query], asked.answers[query]
            answers = two_readers.answered(model, text, [(one,) for one in items], stages.passages)
            helped = {
                one for one, answer in zip(items, answers, strict=True) if token_f1(answer, accepted) > 0
            }
            gold = set(asked.judged.judgements[query])
            for stage, pool in of_stage.items():
                rows += _labelled(query, stage, pool, gold, helped)
            csv_rows.write(PATH, rows)


def _labelled(
    query: str, stage: str, pool: dict[str, float], gold: Set[str], helped: Set[str]
) -> list[dict[str, object]]:
    """Return normalised EE-R at each dial by both kinds of labels, and how many passages each kind has."""
    by_gold, by_utility = shown(query, stage, pool, gold), shown(query, stage, pool, helped)
    return [
        {
            "question": query,
            "stage": stage,
            "dial": one.dial,
            "gold": len(gold & pool.keys()),
            "utility": len(helped & pool.keys()),
            "both": len(gold & helped & pool.keys()),
            "disparity": one.disparity,
            "relevance_gold": one.relevance,
            "relevance_utility": other.relevance,
        }
        for one, other in zip(by_gold, by_utility, strict=True)
    ]


if __name__ == "__main__":
    main()
