"""``python -m benchmarks.rerank_table``: score what is missing, and write the table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks import page
from benchmarks.rerank_table import judged_sets, table
from benchmarks.rerank_table.judged_sets import JudgedSet
from benchmarks.rerank_table.scoring import Scores, score, score_set

_INTRODUCTION: Final = """# What reranking is worth

`make rerank-table` writes this page. It ranks the passages of at most {questions} questions of each data
set with every first stage and every reranker ({date}, the bundled models). `own-docs` are the sections
of these pages and questions of ours.

- The first stages find 100 passages each. `{baseline}` fuses them by reciprocal rank (k = 60), `hybrid,
  standardized` by scores of mean 0 and standard deviation 1.
- `cosine`, `rankrag` and `cross-encoder` reorder the best {depth} of the rank fusion; of `msmarco-dl19`
  BM25's best 50. `+ rankrag` is what an ask computes that names it: the reranker's log-odds plus a weight
  times the standardized scores of the hybrid. Here the weight is learned on the other data sets that the
  model has not been trained on. **`hybrid, standardized + cross-encoder` is what an ask without options
  gets.**
- `*`: the model was trained on questions of this data set or of its domain. *Mean of unseen* is over the
  data sets that no model was trained on.
- The cross-encoder has also read 500 questions of `pubmedqa-l` with abstracts of PubMed, and 1,500 of
  `mirage`: the field of `bioasq` and `nfcorpus`, none of their questions.
- Intervals are of the paired differences, 95 %, by bootstrap over the questions (BCa; for the means
  percentiles, the questions of each data set drawn anew).

"""


_CALIBRATION: Final = """
## Calibration

The relevance that an ask reports is σ(slope · (log-odds + weight · standardized score) + intercept) with
weight {weight:g}, slope {slope:.3f} and intercept {intercept:.3f}. The weight is the best over all data sets
that the model has not seen; the others fit half of the questions of `squad-open`. Expected calibration error
(Guo et al. 2017, ten intervals) of the passages that are reranked, of `squad-open` with the other half of its
questions; a passage that nobody judged counts as useless:

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
        questions=given.questions, depth=table.ASKED, date=datetime.now(UTC).date(), baseline=table.BASELINE
    )
    text += table.markdown(sets, found)
    text += _weights(weights) + _calibration(sets, scores)
    if given.out is None:
        sys.stdout.write(text)
    else:
        given.out.write_text(text, encoding="utf-8")
    return 0


def _weights(weights: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        {"reranker": reranker, **{name: f"{weight:g}" for name, weight in by_set.items()}}
        for reranker, by_set in weights.items()
    ]
    said = "Of the hybrid's standardized scores, learned without the data set that it is used on:"
    return f"\n## Weights\n\n{said}\n\n{page.table(rows)}\n"


def _calibration(sets: Mapping[str, JudgedSet], scores: Mapping[str, Mapping[str, Scores]]) -> str:
    """Return the calibration of the fused cross-encoder: fitted on half of a domain, stated for all."""
    name, domain = "cross-encoder", "squad-open"
    if domain not in sets:
        return ""
    rows = list(scores[domain].values())
    fusion = table.calibrated(
        sets[domain], rows[::2], name, table.learned_weight(table.values_of_weights(name, sets, scores))
    )
    errors = {
        one: table.calibration_error(
            judged, rows[1::2] if one == domain else scores[one].values(), name, fusion
        )
        for one, judged in sets.items()
    }
    return _CALIBRATION.format(weight=fusion.weight, slope=fusion.slope, intercept=fusion.intercept) + (
        page.table([{one: f"{error:.3f}" for one, error in errors.items()}]) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
