"""``python -m benchmarks.rerank_table``: score what is missing, and write the table."""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks import page
from benchmarks.rerank_table import judged_sets, table
from benchmarks.rerank_table.scoring import DEPTH, score, score_set

_INTRODUCTION: Final = """# What reranking is worth

`make rerank-table` writes this page. It ranks the passages of at most {questions} questions of each data
set with every first stage and every reranker ({date}, the bundled models). `own-docs` are the sections
of these pages and questions of ours.

- The first stages find 100 passages each. `{baseline}` fuses them by reciprocal rank (k = 60), `hybrid,
  standardized` by scores of mean 0 and standard deviation 1.
- `cosine`, `rankrag` and `cross-encoder` reorder the best {depth} of the rank fusion; of `msmarco-dl19`
  BM25's best 50. `+ rankrag` adds the weighted log-odds of the reranker to the standardized score of the
  best {depth}. The weight is learned on the other data sets that the model has not been trained on.
- `*`: the model was trained on questions of this data set or of its domain. *Mean of unseen* is over the
  data sets that no model was trained on.
- Intervals are of the paired differences, 95 %, by bootstrap over the questions (BCa; for the means
  percentiles, the questions of each data set drawn anew).

"""


def main() -> int:
    """Score all data sets in several processes, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rerank_table", description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("build/rerank-table"), help="where scores are kept")
    parser.add_argument("--questions", type=int, default=60, help="most questions of a data set")
    parser.add_argument("--sets", nargs="+", choices=judged_sets.NAMES, default=list(judged_sets.NAMES))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="data sets at a time")
    parser.add_argument("--out", type=Path, help="file for the table; default: standard output")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        work = {pool.submit(score_set, name, given.questions, given.home): name for name in given.sets}
        for done in as_completed(work):
            sys.stderr.write(f"{work[done]}: {done.result()} questions\n")
    sets = {name: judged_sets.load(name, given.questions) for name in given.sets}
    scores = {name: score(judged, given.home) for name, judged in sets.items()}
    found, weights = table.everything(sets, scores)
    text = _INTRODUCTION.format(
        questions=given.questions, depth=DEPTH, date=datetime.now(UTC).date(), baseline=table.BASELINE
    )
    text += table.markdown(sets, found)
    text += "\n## Weights\n\nOf a reranker's log-odds, learned without the data set that it is used on:\n\n"
    text += page.table(
        [
            {"reranker": reranker, **{name: f"{weight:g}" for name, weight in by_set.items()}}
            for reranker, by_set in weights.items()
        ]
    )
    text += "\n"
    if given.out is None:
        sys.stdout.write(text)
    else:
        given.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
