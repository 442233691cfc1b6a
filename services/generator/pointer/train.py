"""Trains the bundled pointer model: ``python -m services.generator.pointer.train``."""

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_data_path
from tqdm import tqdm

from services.generator.pointer import base, checkpoint
from services.generator.pointer.checkpoint import Progress
from services.generator.pointer.evaluate import QuickEvaluation
from services.generator.pointer.examples import (
    Batch,
    ExampleSource,
    Size,
    collate,
    default_data,
    read_passages,
    read_questions,
)
from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.objective import losses
from services.generator.pointer.tokenization import PairTokenizer


@dataclass(frozen=True)
class Stage:
    """From step ``start`` on, examples are of ``size``."""

    start: int
    size: Size

    @classmethod
    def parse(cls, text: str) -> "Stage":
        """From ``START:TOKENS:NEGATIVE_RATE``, as on the command line."""
        start, limit, rate = text.split(":")
        return cls(int(start), Size(int(limit), float(rate)))


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the outcome of a run.

    ``steps`` optimiser steps, 0 for one epoch; ``stages`` how large the examples are, from which step;
    rates in [0, 1]; learning rates per step at the top of the schedule; ``warm_up`` steps of linear
    rise. The first stage decides the order of the questions, so every epoch has each once.
    """

    seed: int = 13
    steps: int = 0
    batch_size: int = 32
    stages: tuple[Stage, ...] = (
        Stage(0, Size(160, 0.4)),
        Stage(1200, Size(144, 0.25)),
        Stage(1350, Size(128, 0.2)),
    )
    fused_rate: float = 0.5
    encoder_rate: float = 1e-4
    decoder_rate: float = 5e-4
    weight_decay: float = 0.01
    warm_up: int = 100
    clip: float = 1.0
    bfloat16: bool = True

    def size(self, step: int) -> Size:
        """What the examples of ``step`` may cost."""
        return [stage.size for stage in self.stages if stage.start <= step][-1]

    def rate(self, step: int) -> float:
        """Factor on the learning rates at ``step``, counted from 0: linear rise, then linear fall to 0."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        return max(0.0, (self.steps - step) / max(1, self.steps - self.warm_up))


class Trainer:
    """Runs a recipe step by step; the batches depend on the step alone, so a resumed run goes on exactly."""

    def __init__(self, model: PointerForConditionalGeneration, source: ExampleSource, recipe: Recipe) -> None:
        self._source = source
        self._epoch = -1
        self._batches: list[list[int]] = []
        self._per_epoch = -(-len(source) // recipe.batch_size)
        self.model = model
        self.recipe = replace(recipe, steps=recipe.steps or self._per_epoch)
        encoder = [p for p in model.encoder.layers.parameters() if p.requires_grad]
        known = {id(p) for p in encoder}
        rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
        self.optimizer = torch.optim.AdamW(
            [{"params": encoder, "lr": recipe.encoder_rate}, {"params": rest, "lr": recipe.decoder_rate}],
            weight_decay=recipe.weight_decay,
            fused=True,
        )
        self._top = [recipe.encoder_rate, recipe.decoder_rate]
        model.train()

    def batch(self, step: int) -> Batch:
        """The batch of ``step``, counted from 0 over all epochs."""
        epoch, at = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            self._batches = self._source.epoch(epoch, self.recipe.batch_size)
            self._epoch = epoch
        size = self.recipe.size(step)
        examples = [self._source.example(index, epoch, size) for index in self._batches[at]]
        return collate(examples, answer_token=self.model.config.answer_token_id)

    def step(self, step: int) -> dict[str, float]:
        """One optimiser step; the losses (nats) and the gradient's norm before clipping."""
        for group, top in zip(self.optimizer.param_groups, self._top, strict=True):
            group["lr"] = top * self.recipe.rate(step)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.recipe.bfloat16):
            loss = losses(self.model, self.batch(step))
        loss.total.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(
            [p for p in self.model.parameters() if p.requires_grad], self.recipe.clip, error_if_nonfinite=True
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"answer": loss.answer.item(), "relevance": loss.relevance.item(), "norm": float(norm)}


def default_output() -> Path:
    """Folder of checkpoints: ``training/pointer`` in ``RAGMESH_HOME`` or the platform's user data folder."""
    home = os.environ.get("RAGMESH_HOME")
    return (Path(home) if home else user_data_path("ragmesh")) / "training" / "pointer"


def parser() -> argparse.ArgumentParser:
    """The command line."""
    recipe = Recipe()
    out = argparse.ArgumentParser(description=__doc__)
    out.add_argument("--data", type=Path, default=default_data(), help="folder that holds squad-open/")
    out.add_argument(
        "--output", type=Path, default=default_output(), help="folder of checkpoints and the log"
    )
    out.add_argument("--resume", action="store_true", help="go on from the checkpoint in --output")
    out.add_argument("--threads", type=int, default=0, help="torch threads; 0 leaves torch's choice")
    out.add_argument("--checkpoint-every", type=int, default=150, metavar="STEPS")
    out.add_argument("--evaluate-every", type=int, default=600, metavar="STEPS")
    for name, value in asdict(recipe).items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            out.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    out.add_argument(
        "--stage",
        type=Stage.parse,
        action="append",
        metavar="START:TOKENS:RATE",
        help="from step START on, pairs of at most TOKENS tokens and this share of negatives; repeatable",
    )
    out.add_argument("--float32", action="store_true", help="no bfloat16 autocast")
    return out


def main(arguments: list[str] | None = None) -> None:
    """Train, logging one JSON object per line to ``log.jsonl`` in the output folder."""
    options = parser().parse_args(arguments)
    recipe = Recipe(
        **{name: getattr(options, name) for name in asdict(Recipe()) if name in options},
        stages=tuple(options.stage or Recipe().stages),
        bfloat16=not options.float32,
    )
    if options.threads:
        torch.set_num_threads(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    data = options.data / "squad-open"
    tokenizer = PairTokenizer(base.folder())
    source = ExampleSource(
        read_passages(data / "passages.train.jsonl.gz"),
        read_questions(data / "questions.train.jsonl.gz"),
        tokenizer,
        seed=recipe.seed,
        size=recipe.size(0),
        fused_rate=recipe.fused_rate,
    )
    quick = QuickEvaluation(
        read_passages(data / "passages.dev.jsonl.gz"),
        read_questions(data / "questions.dev.jsonl.gz"),
        tokenizer,
    )
    trainer = Trainer(base.from_package(seed=recipe.seed), source, recipe)
    progress = Progress(0, 0.0)
    if options.resume:
        progress = checkpoint.load(options.output, trainer.model, trainer.optimizer)
    with (options.output / "log.jsonl").open("a", encoding="utf-8") as stream:

        def log(entry: dict[str, Any]) -> None:
            stream.write(json.dumps(entry) + "\n")
            stream.flush()

        settings = asdict(trainer.recipe)
        log({"start": progress.step, "questions": len(source), "threads": torch.get_num_threads()} | settings)
        steps = trainer.recipe.steps
        bar = tqdm(range(progress.step, steps), initial=progress.step, total=steps, unit="step")
        spent = progress.seconds
        for step in bar:
            began = time.monotonic()
            entry = trainer.step(step)
            seconds = time.monotonic() - began
            spent += seconds
            log(
                {"step": step + 1, **{k: round(v, 4) for k, v in entry.items()}, "seconds": round(seconds, 3)}
            )
            bar.set_postfix(answer=f"{entry['answer']:.2f}", relevance=f"{entry['relevance']:.2f}")
            last = step + 1 == steps
            if last or (step + 1) % options.checkpoint_every == 0:
                checkpoint.save(options.output, trainer.model, trainer.optimizer, Progress(step + 1, spent))
            if last or (step + 1) % options.evaluate_every == 0:
                log({"step": step + 1, **quick.run(trainer.model)})
                trainer.model.train()


if __name__ == "__main__":
    main()
