"""Writes the shipped model from a training checkpoint: ``python -m services.generator.pointer.export``."""

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers

from services.generator.pointer import artifact, base, card, checkpoint
from services.generator.pointer.card import Training
from services.generator.pointer.train import Recipe, default_output


def processor() -> str:
    """The processor's name and how many of its cores this process may use."""
    name = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.is_file():
        models = [
            line.split(":", 1)[1].strip()
            for line in described.read_text().splitlines()
            if "model name" in line
        ]
        name = models[0] if models else name
    return f"{os.cpu_count()} cores of {name} (no GPU)"


def described(folder: Path, steps: int, seconds: float) -> Training:
    """How the run that logged to ``folder`` was trained."""
    lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    start: dict[str, Any] = next(entry for entry in map(json.loads, reversed(lines)) if "start" in entry)
    recipe = {name: start[name] for name in asdict(Recipe())}
    return Training(
        steps=steps,
        planned=recipe["steps"],
        seconds=round(seconds, 1),
        questions=start["questions"],
        recipe=recipe,
        hardware=processor(),
        software=f"torch {torch.__version__}, transformers {transformers.__version__}",
    )


def main(arguments: list[str] | None = None) -> None:
    """Export the checkpoint of ``--training`` to ``--output`` and write a card without measurements."""
    out = argparse.ArgumentParser(description=__doc__)
    out.add_argument("--training", type=Path, default=default_output(), help="folder the trainer wrote to")
    out.add_argument("--output", type=Path, default=artifact.bundled(), help="folder of the shipped model")
    options = out.parse_args(arguments)
    model = base.from_package(seed=0)
    progress = checkpoint.load(options.training, model)
    artifact.save(model, options.output)
    training = described(options.training, progress.step, progress.seconds)
    (options.output / card.TRAINING).write_text(
        json.dumps(asdict(training), indent=2) + "\n", encoding="utf-8"
    )
    (options.output / card.EVALUATION).unlink(missing_ok=True)
    card.write(options.output)


if __name__ == "__main__":
    main()
