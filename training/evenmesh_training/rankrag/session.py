"""Prepare a training run: find every problem before the first step."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from evenmesh_lab.files.trained_texts import TrainingTexts
from evenmesh_training.rankrag import checkpoints, evaluation, loop, record
from evenmesh_training.rankrag.data.blend import Blend, described
from evenmesh_training.rankrag.learners.learner import Learner
from evenmesh_training.rankrag.learners.pointer_learner import PointerLearner
from evenmesh_training.rankrag.loop import Trainer
from evenmesh_training.rankrag.recipe import Recipe, RecipeError, Stage
from evenmesh_training.rankrag.starting_models import POINTER, folder_of, is_pointer, load_pointer, unfreeze

if TYPE_CHECKING:
    from evenmesh_training.rankrag.learners.text_learner import TextLearner

_PROBE = 64
"""Examples measured before training, to find contexts that the model cannot hold."""


@dataclass(frozen=True)
class Options:
    """Options of the command line; None keeps the recipe's value."""

    model: str
    stage: int
    output: Path
    data: Path
    resume: bool = False
    lora: bool | None = None
    steps: int | None = None
    bf16: bool | None = None
    frozen_layers: int | None = None
    progress_bar: bool = True

    def settings(self, recipe: Recipe) -> Stage:
        """Return the recipe's stage with what the command line overrides.

        Raises:
            RecipeError: there is no such stage.
        """
        changed: dict[str, Any] = {}
        for name in ("lora", "steps", "bf16"):
            value = getattr(self, name)
            if value is not None:
                changed[name] = value
        return Stage.model_validate(recipe.stage(self.stage).model_dump() | changed)


def prepare(recipe: Recipe, options: Options) -> Trainer:
    """Return the trainer of a run, ready for its first step.

    Raises:
        RecipeError: the recipe, the data, the model or the output folder cannot be used; the message says
            what to change.
    """
    stage = options.settings(recipe)
    if not options.resume:
        loop.prepare_output(options.output)
    blend = Blend(recipe, options.data, stage=options.stage)
    learner = load(options, stage, blend)
    samples = {} if options.stage == 1 else evaluation.samples(recipe, options.data, stage.evaluate_examples)
    identity = {
        "recipe": recipe.model_dump(mode="json", exclude={"stage1", "stage2", "about"}),
        "stage": options.stage,
        "start": options.model,
    }
    trainer = Trainer(
        learner,
        blend,
        stage,
        options.output,
        seed=recipe.seed,
        samples=samples,
        identity=identity,
        start=folder_of(options.model),
        resume=options.resume,
        progress_bar=options.progress_bar,
    )
    if trainer.is_main:
        text = json.dumps(described(blend), indent=2) + "\n"
        (options.output / record.BLEND).write_text(text, encoding="utf-8")
        name = f"rankrag {recipe.name}, stage {options.stage}"
        record.keep_texts(options.output, TrainingTexts.of(name, *blend.texts()), start=options.model)
    return trainer


def export(run: Path, output: Path) -> int:
    """Write the model of the last checkpoint in ``run``, its averaged weights where kept; the steps it had.

    Raises:
        RecipeError: there is no checkpoint, or ``output`` holds something.
    """
    described = run / record.SETTINGS
    if not described.is_file():
        raise RecipeError(f"{run} is not the folder of a training run: {described} is missing")
    settings = json.loads(described.read_text(encoding="utf-8"))
    loop.prepare_output(output)
    stage = Stage.model_validate({k: v for k, v in settings.items() if k in Stage.model_fields})
    options = Options(
        model=settings["start"],
        stage=settings["stage"],
        output=output,
        data=run,
        frozen_layers=settings.get("frozen_layers"),
    )
    learner = _model(options, stage, seed=settings["seed"])
    averages, progress = checkpoints.load(run, learner.module, None, None)
    parameters = dict(learner.module.named_parameters())
    with torch.no_grad():
        for name, value in averages.items():
            parameters[name].copy_(value)
    learner.save(output)
    record.write(run, output, progress, start=folder_of(settings["start"]))
    return progress.step


def load(options: Options, stage: Stage, blend: Blend) -> Learner:
    """Load the model to train, and check it against a sample of what it will be shown.

    Raises:
        RecipeError: it cannot be loaded, or does not fit the recipe.
    """
    learner = _model(options, stage, seed=blend.recipe.seed)
    learner.check([blend[index] for index in range(_PROBE)])
    return learner


def _model(options: Options, stage: Stage, *, seed: int) -> "PointerLearner | TextLearner":
    if options.model == POINTER or is_pointer(options.model):
        return _pointer(options, stage, seed=seed)
    # peft takes seconds to import, and the pointer model has no use for it
    from evenmesh_training.rankrag.learners.text_learner import TextLearner

    return TextLearner.load(options.model, stage)


def _pointer(options: Options, stage: Stage, *, seed: int) -> PointerLearner:
    if stage.lora:
        raise RecipeError("the pointer model is small and trained in full: leave out --lora")
    model, tokenizer = load_pointer(options.model, seed=seed)
    held = model.config.max_position_embeddings
    if stage.max_length > held:
        raise RecipeError(
            f"max_length {stage.max_length} is more than the {held} tokens that the model reads; lower it in "
            "the recipe's stage"
        )
    if options.frozen_layers is not None:
        unfreeze(model, options.frozen_layers)
    return PointerLearner(model, tokenizer, stage)
