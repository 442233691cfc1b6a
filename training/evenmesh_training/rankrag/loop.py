"""Train on accelerate, in one process or several; an interruption changes nothing.

What a step sees depends on its number alone: its examples on the blend, its random draws (dropout) on the
seed, the step and the process. So a resumed run repeats an uninterrupted one to the last bit, on the same
number of processes and threads.
"""

import contextlib
import csv
import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch.utils.tensorboard.writer import SummaryWriter
from tqdm import tqdm

from evenmesh_kit.compute import idle_memory
from evenmesh_kit.compute.placement import multiplies_bfloat16
from evenmesh_lab.files.cells import inert
from evenmesh_training.rankrag import checkpoints, evaluation, record
from evenmesh_training.rankrag.batches import Batches, Examples
from evenmesh_training.rankrag.checkpoints import Averages, Progress, trained
from evenmesh_training.rankrag.data.examples import Example
from evenmesh_training.rankrag.learners.learner import Learner, Prediction
from evenmesh_training.rankrag.recipe import RecipeError, Stage
from evenmesh_training.rankrag.record import EVALUATIONS, LOG, SETTINGS

MODEL: Final = "model"

_MAY_CHANGE = ("steps", "evaluate_every", "evaluate_examples", "checkpoint_every", "micro_batch")
"""Settings of a stage that a resumed run may change: none changes a step before the schedule's end.

``micro_batch`` changes rounding only.
"""


@dataclass(frozen=True)
class TrainingResult:
    """How a run ended: steps done, whether those were all, and the last evaluation's measures."""

    step: int
    complete: bool
    measures: Mapping[str, float]


def accelerator(stage: Stage) -> Accelerator:
    """Return the accelerator of this process: a GPU where there is one, bfloat16 where both have it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    narrow = stage.bf16 and multiplies_bfloat16(device)
    return Accelerator(mixed_precision="bf16" if narrow else "no", cpu=device.type == "cpu")


def prepare_output(folder: Path) -> None:
    """Make the output folder of a new run.

    Raises:
        RecipeError: it holds something.
    """
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file; --output names a folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise RecipeError(
            f"{folder} is not empty: give another --output, or --resume to go on with what is there"
        )
    folder.mkdir(parents=True, exist_ok=True)


class Trainer:
    """Trains a learner by a stage's settings; checkpoints, logs and evaluates on the way.

    Args:
        samples: held-out examples by name, for :func:`evaluation.measures`.
        identity: what else the run is made of (recipe, model), compared when it is resumed.
        start: folder of the model it starts from, if it is one, for the record.
        resume: go on from the checkpoint in ``output``.

    Raises:
        RecipeError: the batch does not split over the processes, or there is nothing fitting to resume.
    """

    def __init__(
        self,
        learner: Learner,
        examples: Examples,
        stage: Stage,
        output: Path,
        *,
        seed: int,
        samples: Mapping[str, Sequence[Example]],
        identity: Mapping[str, Any],
        start: Path | None = None,
        resume: bool = False,
        progress_bar: bool = True,
    ) -> None:
        self._accelerator = accelerator(stage)
        world = self._accelerator.num_processes
        if stage.batch_size % world:
            raise RecipeError(f"batch_size {stage.batch_size} does not split over {world} processes")
        self._learner = learner
        self._stage = stage
        self._seed = seed
        self._output = output
        self._samples = samples
        self._start = start
        self._bar = progress_bar
        self._batches = Batches(examples, learner.cost, size=stage.batch_size, seed=seed)
        self._optimizer = torch.optim.AdamW(
            learner.parameter_groups(stage),
            betas=(stage.beta1, stage.beta2),
            weight_decay=stage.weight_decay,
        )
        self._tops = [group["lr"] for group in self._optimizer.param_groups]
        fixed = {
            name: value for name, value in stage.model_dump(mode="json").items() if name not in _MAY_CHANGE
        }
        self._settings = {**identity, **fixed, **learner.describe(), "seed": seed, "processes": world}
        self._averages: Averages = {}
        self._progress = Progress(0, 0.0)
        learner.module.to(self._accelerator.device)
        if resume:
            self._averages, self._progress = checkpoints.load(
                output, learner.module, self._optimizer, self._settings
            )
            self._averages = {
                name: value.to(self._accelerator.device) for name, value in self._averages.items()
            }
        elif stage.ema:
            self._averages = {name: p.detach().clone() for name, p in trained(learner.module).items()}
        self._module = self._accelerator.prepare_model(learner.module)
        self._stopped = False

    @property
    def is_main(self) -> bool:
        """Return whether this process is the one that reports."""
        return bool(self._accelerator.is_main_process)

    def run(self) -> TrainingResult:
        """Train to the last step, or until SIGTERM or SIGINT, which ends in a checkpoint."""
        main = self._accelerator.is_main_process
        steps = self._stage.steps
        measures: Mapping[str, float] = {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._signals())
            log = stack.enter_context(_Log(self._output, self._progress.step, write=main))
            bar = stack.enter_context(
                tqdm(
                    total=steps,
                    initial=self._progress.step,
                    unit="step",
                    disable=None if main and self._bar else True,
                )
            )
            if main:
                said = {"steps": steps, "hardware": record.hardware(), "software": record.software()}
                (self._output / SETTINGS).write_text(
                    json.dumps(self._settings | said, indent=2) + "\n", encoding="utf-8"
                )
            if self._evaluates(self._progress.step):
                # A run that ended after the checkpoint may not have made the evaluation.
                measures = log.evaluation_of(self._progress.step)
                if self._any(main and not measures):
                    measures = self._evaluate()
                    log.evaluation(self._progress.step, measures)
            for step in range(self._progress.step, steps):
                began = time.monotonic()
                parts = self._step(step)
                seconds = time.monotonic() - began
                self._progress = Progress(step + 1, self._progress.seconds + seconds)
                log.step(step + 1, parts | {"seconds": seconds})
                bar.update()
                bar.set_postfix(loss=f"{parts['loss']:.3f}")
                last = step + 1 == steps
                stop = self._stop_requested()
                if last or stop or (step + 1) % self._stage.checkpoint_every == 0:
                    self._checkpoint()
                    idle_memory.give_back_freed()
                if stop and not last:
                    return TrainingResult(step + 1, complete=False, measures=measures)
                if self._evaluates(step + 1):
                    measures = self._evaluate()
                    log.evaluation(step + 1, measures)
        if main:
            with self._averaged():
                self._learner.save(self._output / MODEL)
            record.write(self._output, self._output / MODEL, self._progress, start=self._start)
        self._accelerator.wait_for_everyone()
        return TrainingResult(self._progress.step, complete=True, measures=measures)

    def _step(self, step: int) -> dict[str, float]:
        """Take one optimiser step; return its losses over all processes, the rate, the gradient's norm."""
        factor = self._stage.factor(step)
        for group, top in zip(self._optimizer.param_groups, self._tops, strict=True):
            group["lr"] = top * factor
        rank, world = self._accelerator.process_index, self._accelerator.num_processes
        drawn = np.random.SeedSequence([self._seed, step, rank]).generate_state(1, np.uint64)
        torch.manual_seed(int(drawn[0] >> np.uint64(1)))
        mine = self._batches[step][rank::world]
        micro = self._stage.micro_batch
        runs = [mine[begin : begin + micro] for begin in range(0, len(mine), micro)]
        sums: dict[str, torch.Tensor] = {}
        for number, run in enumerate(runs):
            waiting = number + 1 < len(runs)
            held = self._accelerator.no_sync(self._module) if waiting else contextlib.nullcontext()
            with held:
                with self._accelerator.autocast():
                    parts = self._module(self._learner.collate(run).to(self._accelerator.device))
                share = len(run) / len(mine)
                self._accelerator.backward(parts["loss"] * share)
            for name, value in parts.items():
                sums[name] = (
                    sums.get(name, torch.zeros((), device=value.device)) + value.detach().float() * share
                )
        norm = self._accelerator.clip_grad_norm_(
            list(trained(self._learner.module).values()), self._stage.clip
        )
        if not bool(torch.isfinite(norm)):
            raise FloatingPointError(
                f"the gradient of step {step + 1} is not finite; resume from the checkpoint with a lower "
                "learning rate, or with bf16 = false"
            )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        if self._averages:
            self._average(step)
        names = sorted(sums)
        together = self._accelerator.reduce(torch.stack([sums[name] for name in names]), "mean")
        found = dict(zip(names, together.tolist(), strict=True))
        return found | {"rate": self._tops[0] * factor, "norm": float(norm)}

    @torch.no_grad()
    def _average(self, step: int) -> None:
        # early averages follow quickly: an average over more steps than there were would keep the start
        decay = min(self._stage.ema, (step + 1) / (step + 10))
        for name, parameter in trained(self._learner.module).items():
            self._averages[name].lerp_(parameter, 1.0 - decay)

    @contextlib.contextmanager
    def _averaged(self) -> Iterator[None]:
        """Put the averaged weights, if any, in the model's place for the block."""
        parameters = trained(self._learner.module)
        own = {name: parameters[name].detach().clone() for name in self._averages}
        with torch.no_grad():
            for name, value in self._averages.items():
                parameters[name].copy_(value)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, value in own.items():
                    parameters[name].copy_(value)

    def _evaluate(self) -> dict[str, float]:
        """Return the measures of the averaged weights; the samples are split over the processes."""
        rank, world = self._accelerator.process_index, self._accelerator.num_processes
        judged: dict[str, list[Prediction]] = {}
        with self._averaged():
            for name, examples in self._samples.items():
                rows = range(rank, len(examples), world)
                found = self._learner.predict([examples[row] for row in rows])
                everyone = gather_object(list(zip(rows, found, strict=True)))
                judged[name] = [one for _, one in sorted(everyone, key=lambda pair: pair[0])]
        return evaluation.measures(self._samples, judged)

    def _checkpoint(self) -> None:
        if self._accelerator.is_main_process:
            checkpoints.save(
                self._output,
                self._learner.module,
                self._optimizer,
                self._averages,
                self._progress,
                self._settings,
            )
        self._accelerator.wait_for_everyone()

    def _stop_requested(self) -> bool:
        """Return whether any process was asked to stop: all end after the same step."""
        return self._any(self._stopped)

    def _any(self, here: bool) -> bool:
        """Return whether something is so in any process."""
        flag = torch.tensor(float(here), device=self._accelerator.device)
        return bool(self._accelerator.reduce(flag, "sum") > 0)

    def _evaluates(self, step: int) -> bool:
        """Return whether the weights after ``step`` steps are evaluated."""
        return step > 0 and (step >= self._stage.steps or step % self._stage.evaluate_every == 0)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(_number: int, _frame: FrameType | None) -> None:
            self._stopped = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Log:
    """``log.csv`` and ``evaluations.csv``, and TensorBoard's; what a resumed run repeats is cut off."""

    def __init__(self, folder: Path, step: int, *, write: bool) -> None:
        self._folder = folder
        self._start = step
        self._write = write
        self._board: SummaryWriter | None = None

    def __enter__(self) -> "_Log":
        if self._write:
            for name in (LOG, EVALUATIONS):
                _cut(self._folder / name, self._start)
            self._board = SummaryWriter(str(self._folder / "tensorboard"), purge_step=self._start + 1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._board is not None:
            self._board.close()

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line of the log."""
        self._add(LOG, "train", step, values)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write one line of the evaluations."""
        self._add(EVALUATIONS, "evaluation", step, values)

    def evaluation_of(self, step: int) -> Mapping[str, float]:
        """Return the evaluation after ``step`` steps that is written already; empty without one."""
        path = self._folder / EVALUATIONS
        if not self._write or not path.is_file():
            return {}
        with path.open(newline="", encoding="utf-8") as stream:
            rows = [row for row in csv.DictReader(stream) if int(row.pop("step")) == step]
        return {name: float(value) for name, value in rows[-1].items()} if rows else {}

    def _add(self, name: str, group: str, step: int, values: Mapping[str, float]) -> None:
        if self._board is None:
            return
        path = self._folder / name
        fresh = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            if fresh:
                writer.writerow(["step", *map(inert, values)])
            writer.writerow([step, *(f"{value:.6g}" for value in values.values())])
        for key, value in values.items():
            self._board.add_scalar(f"{group}/{key}", value, step)


def _cut(path: Path, step: int) -> None:
    """Leave out the lines after ``step``, of which the checkpoint does not know, and any that is cut off."""
    if not path.is_file():
        return
    with path.open(newline="", encoding="utf-8") as stream:
        header, *rows = list(csv.reader(stream)) or [[]]
    if not header:
        path.unlink()  # the run was killed before its first line
        return
    kept = [row for row in rows if len(row) == len(header) and int(row[0]) <= step]
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([header, *kept])
