"""``python -m services.reranker.bundled.evaluate``: a model as reranker on SQuAD's dev questions.

BM25's best passages of a question are put in the model's order, as for an agent that is unknown. Reports
nDCG@10 and recall@5 with bootstrap intervals over the questions, against BM25's own order, and how far a
second model (the shipped form in bfloat16, say) ranks alike.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from meshkit.placement import Placement
from ragcore.intervals import mean_interval
from ragcore.list_agreement import kendall_tau
from ragcore.ranking_metrics import ranking_metrics
from services.reranker.bundled import squad
from services.reranker.domain import Agent
from services.reranker.training.ranking import Ranker


def main() -> int:
    """Prints the measures as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of squad-open")
    parser.add_argument("--model", type=Path, required=True, help="folder of the cross-encoder, float32")
    parser.add_argument("--other", type=Path, help="folder of one to compare rankings with")
    parser.add_argument("--other-dtype", default="bfloat16", help="number type of the other's products")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--depth", type=int, default=20, help="of BM25")
    parser.add_argument("--seed", type=int, default=7)
    told = parser.parse_args()
    torch.set_num_threads(1)
    json.dump(measures(told), sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


def measures(told: argparse.Namespace) -> dict[str, Any]:
    """The measures of both orders, in shares, by name, with 95 % intervals."""
    corpus = squad.Corpus(told.data / "squad-open", "dev")
    drawn = np.random.default_rng(told.seed).permutation(len(corpus.questions))[: told.questions]
    questions = [corpus.questions[at] for at in drawn]
    candidates = corpus.best(questions, told.depth)
    judgements = {one.id: dict.fromkeys(one.gold, 1) for one in questions}
    ranker = Ranker(told.model, Placement.choose("cpu", "float32"))
    rankings = {
        "bm25": {one.id: [p.id for p in found] for one, found in zip(questions, candidates, strict=True)},
        "reranked": {
            one.id: ranker.ranked(one.text, found, Agent())
            for one, found in zip(questions, candidates, strict=True)
        },
    }
    told_of: dict[str, Any] = {"questions": len(questions), "depth": told.depth, "seed": told.seed}
    for name, ranking in rankings.items():
        at_ten = ranking_metrics(ranking, judgements, k=10)
        at_five = ranking_metrics(ranking, judgements, k=5)
        for metric, values in (("ndcg@10", at_ten.ndcg), ("recall@5", at_five.recall)):
            found = mean_interval(values, rng=told.seed)
            told_of[f"{name} {metric}"] = [found.value, found.low, found.high]
    if told.other is not None:
        other = Ranker(told.other, Placement.choose("cpu", told.other_dtype))
        taus = [
            kendall_tau(rankings["reranked"][one.id], other.ranked(one.text, found, Agent()))
            for one, found in zip(questions, candidates, strict=True)
        ]
        told_of["kendall_tau"] = float(np.mean(taus))
    return told_of


if __name__ == "__main__":
    sys.exit(main())
