"""``python -m benchmarks.rerank_table.left_out``: rank data sets by models trained without their domain.

Each domain has cross-encoders of its own, one for each seed, trained like the last step of the bundled
one, but from the base encoder and without the data sets of that domain. The same command resumes what was
stopped.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks import command, page
from benchmarks.rerank_table import judged_sets, table
from benchmarks.rerank_table.scoring import score
from benchmarks.rerank_table.table import STANDARDIZED
from benchmarks.shared_data import folder
from evenmesh_core.arrays import FloatArray
from evenmesh_core.significance import paired_bootstrap
from evenmesh_reranker.domain import Fusion
from evenmesh_training.bundled import reranker_lists

SEED: Final = 23
"""Of the lists, which are the same for all trainings, and of the intervals."""
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
has the command), from the base encoder: {steps:,} steps of four lists, learning rate {rate:g},
{seeds} ({date}, at most {questions} questions of each set). It has learned less than the bundled model:
no pairs before, and nothing from agents. The RankRAG reader has no such row: without SQuAD it would be no
reader.

nDCG@10; `+` is the fusion of an ask without options, with the weights of the bundled model, which were
learned on none of these sets. The difference is that of the fusion from the standardized hybrid, with its
paired 95 % interval by bootstrap over the questions (BCa).

```sh
python -m benchmarks.rerank_table.left_out --steps {steps} --seeds {given_seeds} \\
  --out docs/science/leave-one-out.md
```

"""


def main() -> int:
    """Train what is missing, rank, and print the table."""
    parser = command.parser("rerank_table.left_out", __doc__)
    parser.add_argument("--home", type=Path, default=Path("build/rerank-table"), help="where scores are kept")
    parser.add_argument("--questions", type=int, default=100, help="most questions of a data set")
    parser.add_argument("--steps", type=int, default=1000, help="steps of each training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[23, 24], help="of the trainings")
    parser.add_argument("--threads", type=int, default=2, help="threads of a training")
    parser.add_argument("--fusion", type=float, nargs=2, default=(2.0, 1.0), metavar=("WEIGHT", "NEIGHBORS"))
    parser.add_argument("--out", type=Path, help="file for the table; default: standard output")
    given = parser.parse_args()
    rows = []
    for name, domain in DOMAINS.items():
        models = [_trained(given.home / f"{name}-{seed}", domain, seed, given) for seed in given.seeds]
        for one in domain.judged:
            rows.append(_row(one, models, given))
            sys.stderr.write(f"{one}: {rows[-1]}\n")
    text = _INTRODUCTION.format(
        steps=given.steps,
        rate=RATE,
        seeds=_seeds(given.seeds),
        given_seeds=" ".join(map(str, given.seeds)),
        date=datetime.now(UTC).date(),
        questions=given.questions,
    )
    text += page.table(rows) + "\n"
    if given.out is None:
        sys.stdout.write(text)
    else:
        given.out.write_text(text, encoding="utf-8")
    return 0


def _trained(output: Path, domain: Domain, seed: int, given: argparse.Namespace) -> Path:
    """Return the folder of a domain's model; train it if it is not there.

    Raises:
        CalledProcessError: the training ended early.
    """
    model = output / "model"
    if (output / "listwise.json").is_file():
        return model
    output.mkdir(parents=True, exist_ok=True)
    data = folder("squad-open").parent
    # The same lists for all: the training leaves out what it must not see.
    lists = given.home / f"lists-{SEED}.jsonl"
    if not lists.is_file():
        reranker_lists.write(list(reranker_lists.build(data, seed=SEED, log=print)), lists)
    shutil.copy(lists, output / f"lists-{seed}.jsonl")
    command = [sys.executable, "-m", "evenmesh_training.bundled.reranker_listwise", "--start", "fresh"]
    command += ["--data", str(data)]
    command += ["--output", str(output), "--steps", str(given.steps), "--rate", str(RATE)]
    command += ["--threads", str(given.threads), "--seed", str(seed), "--without", *domain.without]
    subprocess.run(command, check=True)
    return model


def _row(name: str, models: Sequence[Path], given: argparse.Namespace) -> dict[str, str]:
    judged = judged_sets.load(name, given.questions)
    alone, fused = [], []
    for model in models:
        scores = score(judged, given.home, model)
        ranked = table.pipelines(judged, scores)
        alone.append(table.measured(judged, ranked[_MODEL]).ndcg)
        fused.append(table.fused(judged, table.pools(judged, scores), _MODEL, Fusion(*given.fusion)).ndcg)
    hybrid = table.measured(judged, ranked[STANDARDIZED]).ndcg
    difference = paired_bootstrap(np.mean(fused, axis=0), hybrid, rng=SEED).difference
    return {
        "data set": name,
        "trained without": ", ".join(next(one.without for one in DOMAINS.values() if name in one.judged)),
        STANDARDIZED: _means([hybrid]),
        "its cosine": _means([table.measured(judged, ranked["cosine"]).ndcg]),
        "left out, alone": _means(alone),
        f"{STANDARDIZED} + left out": _means(fused),
        "difference": f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]",
    }


def _seeds(of: Sequence[int]) -> str:
    """Return which seeds the trainings had."""
    if len(of) == 1:
        return f"seed {of[0]}"
    return f"seeds {' and '.join(map(str, of))}, nDCG the mean over them with that of each beside it"


def _means(of: Sequence[FloatArray]) -> str:
    """Return the mean over the seeds, and each seed's where there are several."""
    means = [float(np.nanmean(one)) for one in of]
    each = f" ({', '.join(f'{one:.3f}' for one in means)})" if len(means) > 1 else ""
    return f"{np.mean(means):.3f}{each}"


if __name__ == "__main__":
    sys.exit(main())
