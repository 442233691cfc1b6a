"""Train models of a seed and ask them; continues where it was stopped.

``python -m benchmarks.ablation_study 31`` does all of a seed, by estimate five hours of one core with AMX;
``python -m benchmarks.ablation_study 31 full raft`` these. What begins with another model trains that first,
unless it is in ``--home``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch

from benchmarks import command
from benchmarks.ablation_study import cross_encoder, records
from benchmarks.ablation_study.asking import ask, pointer
from benchmarks.ablation_study.variants import CROSS_ENCODER, SEEDS, VARIANTS
from evenmesh_training.rankrag import session
from evenmesh_training.rankrag.data.datasets import default_data
from evenmesh_training.rankrag.loop import MODEL
from evenmesh_training.rankrag.session import Options
from evenmesh_training.rankrag.starting_models import POINTER


def main() -> None:
    """Do it."""
    parser = command.parser("ablation_study", __doc__)
    parser.add_argument("--home", type=Path, default=Path("build/ablation-study"), help="for models")
    parser.add_argument("seed", type=int, choices=SEEDS)
    parser.add_argument("variant", nargs="*", help=f"default: all of {', '.join(VARIANTS)}")
    parser.add_argument("--threads", type=int, default=1, help="of the processor; default: 1")
    given = parser.parse_args()
    if unknown := set(given.variant) - VARIANTS.keys():
        parser.error(f"no variant {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    torch.set_num_threads(given.threads)
    for name in given.variant or VARIANTS:
        if records.path(name, given.seed).is_file():
            continue
        model = trained(name, given.seed, given.home / str(given.seed))
        reads = VARIANTS[name].reads
        judge = cross_encoder.judging(model) if name == CROSS_ENCODER else pointer(model, reads=reads)
        records.write(name, given.seed, ask(judge))
        print(f"{name} of seed {given.seed}: asked", flush=True)


def trained(name: str, seed: int, home: Path) -> Path:
    """Return the folder of a variant's model, trained if it is not there."""
    variant, run = VARIANTS[name], home / name
    if (run / MODEL).is_dir():
        pass
    elif name == CROSS_ENCODER:
        cross_encoder.train(variant, seed, run / MODEL)
    else:
        start = str(trained(variant.start, seed, home)) if variant.start else POINTER
        resume = (run / "checkpoint.pt").is_file()
        if not resume:
            shutil.rmtree(run, ignore_errors=True)
        options = Options(
            model=start, stage=2, output=run, data=default_data(), resume=resume, progress_bar=False
        )
        if not session.prepare(variant.recipe(seed), options).run().complete:
            sys.exit(f"{name} of seed {seed}: stopped; the same command goes on")
    return run / MODEL


if __name__ == "__main__":
    main()
