"""``python -m evenmesh_training.bundled.reranker_evaluation``: measure a reranker on SQuAD's dev questions.

The model reorders BM25's best passages of a question, for an unknown agent. Prints nDCG@10 and recall@5 with
bootstrap intervals over the questions, for BM25's order too, and how similarly a second model (such as the
shipped form in bfloat16) ranks.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evenmesh_core.intervals import mean_interval
from evenmesh_core.list_agreement import kendall_tau
from evenmesh_core.ranking_metrics import ranking_metrics
from evenmesh_kit.compute.placement import Placement
from evenmesh_reranker.domain import Agent
from evenmesh_training.bundled import reranker_squad as squad
from evenmesh_training.ium.ranking import Ranker


def main() -> int:
    """Print the measures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder of squad-open")
    add("--model", type=Path, required=True, help="folder of the cross-encoder, float32")
    add("--other", type=Path, help="folder of a model to compare rankings with")
    add("--other-dtype", default="bfloat16", help="number type of the other's products")
    add("--questions", type=int, default=300)
    add("--depth", type=int, default=20, help="of BM25")
    add("--seed", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    json.dump(measures(given), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def measures(given: argparse.Namespace) -> dict[str, Any]:
    """Return the measures of both orders by name, [0, 1], with 95 % intervals."""
    corpus = squad.Corpus(given.data / "squad-open", "dev")
    chosen = np.random.default_rng(given.seed).permutation(len(corpus.questions))[: given.questions]
    questions = [corpus.questions[at] for at in chosen]
    candidates = list(zip(questions, corpus.best(questions, given.depth), strict=True))
    judgements = {one.id: dict.fromkeys(one.gold, 1) for one in questions}

    def ranked(model: Path, dtype: str) -> dict[str, list[str]]:
        ranker = Ranker(model, Placement.choose("cpu", dtype))
        return {one.id: list(ranker.ranked(one.text, found, Agent())) for one, found in candidates}

    rankings = {
        "bm25": {one.id: [passage.id for passage in found] for one, found in candidates},
        "reranked": ranked(given.model, "float32"),
    }
    result: dict[str, Any] = {"questions": len(questions), "depth": given.depth, "seed": given.seed}
    for name, ranking in rankings.items():
        at_ten = ranking_metrics(ranking, judgements, k=10)
        at_five = ranking_metrics(ranking, judgements, k=5)
        for metric, values in (("ndcg@10", at_ten.ndcg), ("recall@5", at_five.recall)):
            interval = mean_interval(values, rng=given.seed)
            result[f"{name} {metric}"] = [interval.value, interval.low, interval.high]
    if given.other is not None:
        others = ranked(given.other, given.other_dtype)
        taus = [kendall_tau(ranking, others[id_]) for id_, ranking in rankings["reranked"].items()]
        result["kendall_tau"] = float(np.mean(taus))
    return result


if __name__ == "__main__":
    sys.exit(main())
