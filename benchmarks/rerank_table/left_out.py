"""``python -m benchmarks.rerank_table.left_out``: rank data sets by models trained without their domain.

Each domain has a cross-encoder of its own, trained like the last step of the bundled one, but from the base
encoder and without the data sets of that domain. The same command resumes what was stopped.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks import page
from benchmarks.rerank_table import judged_sets, table
from benchmarks.rerank_table.scoring import score
from benchmarks.rerank_table.table import STANDARDIZED, Measured
from benchmarks.shared_data import folder
from evenmesh_core.significance import paired_bootstrap
from evenmesh_reranker.domain import Fusion

SEED: Final = 23
"""Of the lists and of the training."""
RATE: Final = 5e-5
"""Learning rate: the base encoder has read no pairs yet, so it is higher than that of the bundled model."""
_MODEL: Final = "cross-encoder"


class Domain(NamedTuple):
    """Data sets that a model is trained without, and the judged sets that it then ranks."""

    without: tuple[str, ...]
    judged: tuple[str, ...]


DOMAINS: Final[Mapping[str, Domain]] = {
    "without-squad": Domain(("squad-open",), ("squad-open",)),
    "without-nq-and-fever": Domain(
        ("nq-passages", "fever-symmetric"), ("nq-passages", "clapnq", "climate-fever", "fever-symmetric")
    ),
}
"""Domains by name: every judged set that the bundled cross-encoder was trained on, in one of them."""

_INTRODUCTION: Final = """# Leave one domain out

[What reranking is worth](reranking.md) marks the data sets that the bundled cross-encoder was trained on:
what it has there says nothing about new data. Here each of them is ranked by a model that was **not**
trained on its domain, in all else like the last step of the bundled one ([offline IUM](../guides/ium.md)
has the command), from the base encoder: {steps:,} steps of four lists, learning rate {rate:g}, seed {seed}
({date}, at most {questions} questions of each set). It has learned less than the bundled model: no pairs
before, and nothing from agents. The RankRAG reader has no such row: without SQuAD it would be no reader.

nDCG@10; `+` is the fusion of an ask without options, with the weights of the bundled model, which were
learned on none of these sets. The difference is that of the fusion from the standardized hybrid, with its
paired 95 % interval by bootstrap over the questions (BCa).

"""


def main() -> int:
    """Train what is missing, rank, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rerank_table.left_out",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--home", type=Path, default=Path("build/rerank-table"), help="where scores are kept")
    parser.add_argument("--questions", type=int, default=100, help="most questions of a data set")
    parser.add_argument("--steps", type=int, default=1000, help="steps of each training")
    parser.add_argument("--threads", type=int, default=2, help="threads of a training")
    parser.add_argument("--fusion", type=float, nargs=2, default=(2.0, 1.0), metavar=("WEIGHT", "NEIGHBORS"))
    parser.add_argument("--out", type=Path, help="file for the table; default: standard output")
    given = parser.parse_args()
    rows = []
    for name, domain in DOMAINS.items():
        model = _trained(given.home / name, domain, given)
        for one in domain.judged:
            rows.append(_row(one, model, given))
            sys.stderr.write(f"{one}: {rows[-1]}\n")
    text = _INTRODUCTION.format(
        steps=given.steps, rate=RATE, seed=SEED, date=datetime.now(UTC).date(), questions=given.questions
    )
    text += page.table(rows) + "\n"
    if given.out is None:
        sys.stdout.write(text)
    else:
        given.out.write_text(text, encoding="utf-8")
    return 0


def _trained(output: Path, domain: Domain, given: argparse.Namespace) -> Path:
    """Return the folder of a domain's model; train it if it is not there.

    Raises:
        CalledProcessError: the training ended early.
    """
    model = output / "model"
    if (output / "listwise.json").is_file():
        return model
    output.mkdir(parents=True, exist_ok=True)
    lists = f"lists-{SEED}.jsonl"
    for other in DOMAINS:
        made = given.home / other / lists
        if made.is_file() and not (output / lists).is_file():
            shutil.copy(
                made, output / lists
            )  # the same for all: the training leaves out what it must not see
    command = [sys.executable, "-m", "evenmesh_training.bundled.reranker_listwise", "--start", "fresh"]
    command += ["--data", str(folder("squad-open").parent)]
    command += ["--output", str(output), "--steps", str(given.steps), "--rate", str(RATE)]
    command += ["--threads", str(given.threads), "--seed", str(SEED), "--without", *domain.without]
    subprocess.run(command, check=True)
    return model


def _row(name: str, model: Path, given: argparse.Namespace) -> dict[str, str]:
    judged = judged_sets.load(name, given.questions)
    scores = score(judged, given.home, model)
    ranked = table.pipelines(judged, scores)
    hybrid = table.measured(judged, ranked[STANDARDIZED])
    weight, neighbors = given.fusion
    fused = table.fused(judged, table.pools(judged, scores), _MODEL, Fusion(weight, neighbors))
    difference = paired_bootstrap(fused.ndcg, hybrid.ndcg, rng=SEED).difference
    return {
        "data set": name,
        "trained without": ", ".join(next(one.without for one in DOMAINS.values() if name in one.judged)),
        STANDARDIZED: _mean(hybrid),
        "its cosine": _mean(table.measured(judged, ranked["cosine"])),
        "left out, alone": _mean(table.measured(judged, ranked[_MODEL])),
        f"{STANDARDIZED} + left out": _mean(fused),
        "difference": f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]",
    }


def _mean(of: Measured) -> str:
    return f"{np.nanmean(of.ndcg):.3f}"


if __name__ == "__main__":
    sys.exit(main())
