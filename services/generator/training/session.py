"""One training run put together and checked: everything that can be wrong is found before the first step."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from services.generator.pointer import artifact, base
from services.generator.pointer.artifact import ArtifactError
from services.generator.pointer.base import BaseModelError
from services.generator.pointer.modeling import PointerForConditionalGeneration
from services.generator.pointer.tokenization import PairTokenizer
from services.generator.runtime.loading import model_type
from services.generator.training import checkpoints, evaluation, loop, record
from services.generator.training.blend import Blend, described
from services.generator.training.learner import Learner
from services.generator.training.loop import Trainer
from services.generator.training.pointer_learner import PointerLearner
from services.generator.training.recipe import Recipe, RecipeError, Stage

BUNDLED: Final = "bundled"
"""Name of the model that ships, to train it further."""

POINTER: Final = "pointer"
"""Name of a new pointer model, warm-started from its base package."""

_PROBE = 64
"""Examples measured before training, to find contexts that the model cannot hold."""


@dataclass(frozen=True)
class Options:
    """What the command line decides beside the recipe; None leaves the recipe's value."""

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
        """The recipe's stage with what the command line overrides.

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
    """The trainer of a run, ready for its first step.

    Raises:
        RecipeError: the recipe, the data, the model or the output folder cannot be used; the message says
            what to change.
    """
    stage = options.settings(recipe)
    if not options.resume:
        loop.prepare_output(options.output, resume=False)
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
        start=_folder(options.model),
        resume=options.resume,
        progress_bar=options.progress_bar,
    )
    if trainer.speaks:
        text = json.dumps(described(blend), indent=2) + "\n"
        (options.output / record.BLEND).write_text(text, encoding="utf-8")
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
    loop.prepare_output(output, resume=False)
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
    record.write(run, output, progress, start=_folder(settings["start"]))
    return progress.step


def load(options: Options, stage: Stage, blend: Blend) -> Learner:
    """The model to train, checked against what it will be shown.

    Raises:
        RecipeError: it cannot be loaded, or does not fit the recipe.
    """
    learner = _model(options, stage, seed=blend.recipe.seed)
    learner.check([blend[index] for index in range(_PROBE)])
    return learner


def _model(options: Options, stage: Stage, *, seed: int) -> Learner:
    """The model of that name, as something to train; see :func:`load`."""
    if options.model in (BUNDLED, POINTER) or _is_pointer(options.model):
        return _pointer(options, stage, seed=seed)
    # peft takes seconds to import, and the pointer model has no use for it
    from services.generator.training.text_learner import TextLearner

    return TextLearner.load(options.model, stage)


def _folder(model: str) -> Path | None:
    """Where the model of that name lies, if that is a folder here."""
    if model == BUNDLED:
        return artifact.bundled()
    return Path(model) if Path(model).is_dir() else None


def _is_pointer(model: str) -> bool:
    folder = Path(model)
    return (folder / "config.json").is_file() and model_type(folder) == "ragmesh-pointer"


def _pointer(options: Options, stage: Stage, *, seed: int) -> PointerLearner:
    if stage.lora:
        raise RecipeError("the pointer model is small and trained in full: leave out --lora")
    try:
        model: PointerForConditionalGeneration
        if options.model == POINTER:
            model = base.from_package(seed=seed)
        else:
            model = artifact.load(None if options.model == BUNDLED else Path(options.model))
        tokenizer = PairTokenizer(base.folder())
    except (ArtifactError, BaseModelError) as error:
        raise RecipeError(str(error)) from None
    held = model.config.max_position_embeddings
    if stage.max_length > held:
        raise RecipeError(
            f"max_length {stage.max_length} is more than the {held} tokens that the model reads; lower it in "
            "the recipe's stage"
        )
    if options.frozen_layers is not None:
        thaw(model, options.frozen_layers)
    return PointerLearner(model, tokenizer, stage)


def thaw(model: PointerForConditionalGeneration, frozen_layers: int) -> None:
    """Train all encoder layers above the lowest ``frozen_layers``; the embeddings stay the base model's.

    Raises:
        RecipeError: the model has fewer layers, or it would freeze what is not the base model's any more.
    """
    if not 0 <= frozen_layers <= model.config.frozen_layers:
        raise RecipeError(
            f"frozen_layers must be from 0 to {model.config.frozen_layers}: higher layers are trained already"
        )
    model.config.frozen_layers = frozen_layers
    for layer in model.encoder.layers[frozen_layers:]:
        layer.requires_grad_(True)
