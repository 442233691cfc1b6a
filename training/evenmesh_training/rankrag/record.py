"""Record how a model was trained beside it: settings, and its log as a table and a picture."""

import csv
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import transformers

from evenmesh_lab.files.cells import inert
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.trained_texts import (
    TRAINED_TEXTS,
    TrainingTexts,
    trained_texts_of,
    write_trained_texts,
)
from evenmesh_lab.machine import cpu_name
from evenmesh_models import MINILM
from evenmesh_training.rankrag.checkpoints import Progress
from evenmesh_training.rankrag.recipe import RecipeError, Stage
from evenmesh_training.rankrag.starting_models import POINTER, folder_of

LOG: Final = "log.csv"
EVALUATIONS: Final = "evaluations.csv"
SETTINGS: Final = "settings.json"
BLEND: Final = "blend.json"
TRAINING: Final = "training.json"
EVALUATION: Final = "evaluation.json"
CURVE: Final = "training.csv"
PLOT: Final = "training.png"

STEPS_A_ROW: Final = 10
"""Steps whose means are one row of :data:`CURVE`."""


@dataclass(frozen=True)
class Training:
    """How a model was trained.

    ``steps`` done of ``planned``; ``seconds`` spent in steps; ``stage`` the stage's hyper-parameters and
    ``recipe`` the rest of the recipe; ``blend`` what went in, None where that was not kept; ``processes``
    that trained together; ``hardware`` and ``software`` in words; ``start`` the record of the model that
    it started from, with its ``evaluation`` where there is one, None where there is no record.
    """

    steps: int
    planned: int
    seconds: float
    stage: dict[str, Any]
    recipe: dict[str, Any]
    blend: dict[str, Any] | None
    processes: int
    hardware: str
    software: str
    start: dict[str, Any] | None


def keep_texts(run: Path, training: TrainingTexts, *, start: str) -> None:
    """Write what a run learns from into its folder, after what the model it starts from was trained on.

    Args:
        run: folder of the run; :func:`write` copies the file beside the model.
        training: texts of the run.
        start: the model's name or folder.

    Raises:
        RecipeError: the model says what it was trained on, and that cannot be read.
    """
    name = MINILM if start == POINTER else Path(start).name
    try:
        before = trained_texts_of(folder_of(start), name)
    except FileError as error:
        raise RecipeError(str(error)) from None
    write_trained_texts(before.followed_by(training), run)


def hardware() -> str:
    """Return the processor's name, how many of its cores this process may use, and its GPUs."""
    gpus = [torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())]
    return f"{os.cpu_count()} cores of {cpu_name()} ({', '.join(gpus) or 'no GPU'})"


def software() -> str:
    """Return the versions that decide what is computed."""
    return f"torch {torch.__version__}, transformers {transformers.__version__}"


def write(run: Path, output: Path, progress: Progress, *, start: Path | None) -> None:
    """Write the record of the run in ``run`` into ``output``, the folder of its model.

    Args:
        start: the folder of the model it started from, if it is one.
    """
    settings = json.loads((run / SETTINGS).read_text(encoding="utf-8"))
    stage = {name: value for name, value in settings.items() if name in Stage.model_fields}
    blend = run / BLEND
    training = Training(
        steps=progress.step,
        planned=int(settings["steps"]),
        seconds=round(progress.seconds, 1),
        stage=stage,
        recipe=settings.get("recipe", {}),
        blend=json.loads(blend.read_text(encoding="utf-8")) if blend.is_file() else None,
        processes=int(settings["processes"]),
        hardware=settings.get("hardware", hardware()),
        software=settings.get("software", software()),
        start=None if start is None else _before(start),
    )
    text = json.dumps(asdict(training), indent=2) + "\n"
    (output / TRAINING).write_text(text, encoding="utf-8")
    if (texts := run / TRAINED_TEXTS).is_file():
        shutil.copyfile(texts, output / TRAINED_TEXTS)
    curve = _curve(run / LOG, progress.step)
    if not curve:
        return
    with (output / CURVE).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(map(inert, curve[0]))
        writer.writerows([f"{value:.5g}" for value in row.values()] for row in curve)
    if find_spec("matplotlib"):  # of evenmesh-lab[reports]
        (output / PLOT).write_bytes(_picture(curve, _table(run / EVALUATIONS, progress.step)))


def _before(start: Path) -> dict[str, Any] | None:
    """Return the record of the model in ``start``, and what was measured of it."""
    if not (start / TRAINING).is_file():
        return None
    found: dict[str, Any] = json.loads((start / TRAINING).read_text(encoding="utf-8"))
    if (start / EVALUATION).is_file():
        found["evaluation"] = json.loads((start / EVALUATION).read_text(encoding="utf-8"))
    return found


def _table(path: Path, step: int) -> list[dict[str, float]]:
    """Return rows of a log up to ``step``."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(stream)]
    return [row for row in rows if row["step"] <= step]


def _curve(path: Path, step: int) -> list[dict[str, float]]:
    """Return means over :data:`STEPS_A_ROW` steps; a row is named by its last step."""
    rows = _table(path, step)
    runs = [rows[at : at + STEPS_A_ROW] for at in range(0, len(rows), STEPS_A_ROW)]
    return [
        {name: float(np.mean([row[name] for row in run])) for name in run[0]} | {"step": run[-1]["step"]}
        for run in runs
    ]


def _picture(curve: Sequence[Mapping[str, float]], evaluations: Sequence[Mapping[str, float]]) -> bytes:
    """Draw losses above and measures on held-out questions below, over the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from evenmesh_lab.figures.style import series, styled, to_bytes

    losses = [name for name in curve[0] if name not in ("step", "rate", "norm", "seconds")]
    measured = ("gold_em", "five_em", "abstention_precision", "abstention_recall", "ranking_auc")
    with styled():
        made = Figure(figsize=(6.8, 4.2 if evaluations else 2.4), layout="constrained")
        FigureCanvasAgg(made)
        places = made.subplots(2 if evaluations else 1, 1, sharex=True, squeeze=False)[:, 0]
        for place, name in enumerate(losses):
            colour, _ = series(place)
            places[0].plot(
                [row["step"] for row in curve], [row[name] for row in curve], color=colour, label=name
            )
        places[0].set_ylabel("loss, nats per example")
        if evaluations:
            for place, name in enumerate(name for name in measured if name in evaluations[0]):
                colour, marker = series(place)
                places[1].plot(
                    [row["step"] for row in evaluations],
                    [row[name] for row in evaluations],
                    color=colour,
                    marker=marker,
                    label=name.replace("_", " "),
                )
            places[1].set_ylabel("held-out sample")
        places[-1].set_xlabel("optimiser step")
        for axes in places:
            axes.grid(visible=True)
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return to_bytes(made, "png")
