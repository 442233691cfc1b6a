"""``python -m benchmarks.rerank_table``: score what is missing, and write the table."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import evenmesh_models
from benchmarks import page
from benchmarks.rerank_table import judged_sets, seen, table
from benchmarks.rerank_table.judged_sets import JudgedSet
from benchmarks.rerank_table.scoring import digest, score, score_set
from benchmarks.rerank_table.table import Pool
from evenmesh_reranker.domain import Fusion

_INTRODUCTION: Final = """# What reranking is worth

`make rerank-table` writes this page. It ranks the passages of at most {questions} questions of each data
set with every first stage and every reranker ({date}; reader `{reader}`, cross-encoder `{cross_encoder}`).
`own-docs` are the sections of these pages and questions of ours.

- The first stages find 100 passages each. `{baseline}` fuses them by reciprocal rank (k = 60), `hybrid,
  standardized` by scores of mean 0 and standard deviation 1.
- `cosine`, `rankrag` and `cross-encoder` reorder the best {depth} of the rank fusion; of `msmarco-dl19`
  BM25's best 50. `+ rankrag` is what an ask computes that names it: the reranker's log-odds, plus a weight
  times the standardized scores of the hybrid, plus a weight times how much a passage resembles the other
  probable ones, which `no neighbors` leaves out. Here both weights are learned on the other data sets that
  the model has not been trained on; {grid}.
  **`hybrid, standardized + cross-encoder` is what an ask without options gets.**
- `*`: the model was trained on questions of this data set or of its domain;
  [leave one domain out](leave-one-out.md) has rows of models that were not. *Mean of unseen* is over the
  data sets that no model was trained on.
- The cross-encoder has also read 500 questions of `pubmedqa-l` with abstracts of PubMed, and 1,500 of
  `mirage`: the field of `bioasq` and `nfcorpus`, none of their questions.
- Intervals are of the paired differences, 95 %, by bootstrap over the questions (BCa; for the means
  percentiles, the questions of each data set drawn anew).

"""


_CALIBRATION: Final = """
## Calibration

The relevance that an ask reports is σ(slope · (x + neighbors · support(x)) + intercept), where x is log-odds
+ weight · standardized score; weight {weight:g}, neighbors {neighbors:g}, slope {slope:.4f}, intercept
{intercept:.4f}. The weights are the best over all data sets that the model has not seen; slope and intercept
fit half of the questions of `squad-open`. Expected calibration error
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
    pools = {name: table.pools(judged, scores[name]) for name, judged in sets.items()}
    found, fusions = table.everything(sets, scores, pools)
    text = _INTRODUCTION.format(
        questions=given.questions,
        depth=table.ASKED,
        date=datetime.now(UTC).date(),
        reader=digest(evenmesh_models.reader()),
        cross_encoder=digest(evenmesh_models.cross_encoder()),
        baseline=table.BASELINE,
        grid=table.GRID,
    )
    text += table.markdown(sets, found)
    text += _fusions(fusions) + _calibration(sets, pools) + seen.section(sets) + "\n"
    if given.out is None:
        sys.stdout.write(text)
    else:
        given.out.write_text(text, encoding="utf-8")
    return 0


def _fusions(fusions: Mapping[str, Mapping[str, Fusion]]) -> str:
    rows = [
        {"reranker": reranker, **{name: f"{one.weight:g}, {one.neighbors:g}" for name, one in by_set.items()}}
        for reranker, by_set in fusions.items()
    ]
    said = "Of the hybrid's standardized scores and of neighbors, learned without the data set:"
    return f"\n## Weights\n\n{said}\n\n{page.table(rows)}\n"


def _calibration(sets: Mapping[str, JudgedSet], pools: Mapping[str, Mapping[str, Pool]]) -> str:
    """Return the calibration of the fused cross-encoder: fitted on half of a domain, stated for all."""
    name, domain = "cross-encoder", "squad-open"
    if domain not in sets:
        return ""
    queries = list(pools[domain])
    fitted, left = ({one: pools[domain][one] for one in queries[start::2]} for start in (0, 1))
    best = table.learned(table.values_of_fusions(name, sets, pools))
    fusion = table.calibrated(sets[domain], fitted, name, best)
    errors = {
        one: table.calibration_error(judged, left if one == domain else pools[one], name, fusion)
        for one, judged in sets.items()
    }
    return _CALIBRATION.format(**asdict(fusion)) + (
        page.table([{one: f"{error:.3f}" for one, error in errors.items()}]) + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())
