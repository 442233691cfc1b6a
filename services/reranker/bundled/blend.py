"""``python -m services.reranker.bundled.blend``: the mean of a model before and after it learned from agents.

What agents say makes a model forget some of what it was supervised with. The mean of both sets of weights
keeps most of either (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models").
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from meshkit.models import ModelError
from services.reranker.models import tokens
from services.reranker.training import start


def main() -> int:
    """Writes the blended model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="the run's start/model")
    parser.add_argument("--after", type=Path, required=True, help="the last round's model")
    parser.add_argument("--share", type=float, default=0.5, help="of what was learned that stays, [0, 1]")
    parser.add_argument("--output", type=Path, required=True, help="folder for the model")
    told = parser.parse_args()
    if not 0 <= told.share <= 1:
        parser.error(f"--share {told.share}: [0, 1]")
    tokenizer, before = start.load(told.before)
    learned, after = start.load(told.after)
    if tokens.present(tokenizer) != tokens.present(learned):
        raise ModelError(f"{told.before} and {told.after} have other agents")
    blend(before, after, told.share)
    start.save(tokenizer, before, told.output)
    sys.stdout.write(f"{told.output}\n")
    return 0


def blend(model: Any, other: Any, share: float) -> None:
    """Moves a model's weights towards another's, a share of the way in [0, 1]; equal ones stay as they are.

    Raises:
        ModelError: they are not of one shape.
    """
    there = other.state_dict()
    mine = model.state_dict()
    if {name: one.shape for name, one in mine.items()} != {name: one.shape for name, one in there.items()}:
        raise ModelError("the models are not of one shape")
    with torch.no_grad():
        for name, one in mine.items():
            if not torch.equal(one, there[name]):
                one.copy_(torch.lerp(one, there[name], share))


if __name__ == "__main__":
    sys.exit(main())
