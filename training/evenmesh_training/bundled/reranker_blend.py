"""``python -m evenmesh_training.bundled.reranker_blend``: average a model before and after learning.

Learning from agents makes a model forget some of its supervised training. The mean of both sets of weights
keeps most of either (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from evenmesh_kit.compute.model_files import ModelError
from evenmesh_reranker.models import tokens
from evenmesh_training.ium import start


def main() -> int:
    """Write the blended model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--before", type=Path, required=True, help="the run's start/model")
    add("--after", type=Path, required=True, help="the last round's model")
    add("--share", type=float, default=0.5, help="weight of the model after learning, [0, 1]")
    add("--output", type=Path, required=True, help="folder for the model")
    given = parser.parse_args()
    if not 0 <= given.share <= 1:
        parser.error(f"--share {given.share}: [0, 1]")
    tokenizer, before = start.load(given.before)
    other_tokenizer, after = start.load(given.after)
    if tokens.present(tokenizer) != tokens.present(other_tokenizer):
        raise ModelError(f"{given.before} and {given.after} have other agents")
    blend(before, after, given.share)
    start.save(tokenizer, before, given.output)
    sys.stdout.write(f"{given.output}\n")
    return 0


def blend(model: Any, other: Any, share: float) -> None:
    """Move a model's weights towards another's by a share in [0, 1]; equal tensors keep their bits.

    Raises:
        ModelError: the models differ in shape.
    """
    mine, theirs = model.state_dict(), other.state_dict()
    if {name: one.shape for name, one in mine.items()} != {name: one.shape for name, one in theirs.items()}:
        raise ModelError("the models differ in shape")
    with torch.no_grad():
        for name, one in mine.items():
            if not torch.equal(one, theirs[name]):
                one.copy_(torch.lerp(one, theirs[name], share))


if __name__ == "__main__":
    sys.exit(main())
