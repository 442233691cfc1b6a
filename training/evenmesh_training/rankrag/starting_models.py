"""Find the model that a training run starts from."""

from pathlib import Path
from typing import Final

import evenmesh_models
from evenmesh_generator.pointer import artifact
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_generator.pointer.settings import MODEL_TYPE, ArtifactError
from evenmesh_generator.pointer.tokenization import PairTokenizer
from evenmesh_kit.compute.model_files import model_type
from evenmesh_models import BaseModelError
from evenmesh_training.bundled.reader_warm_start import new_reader
from evenmesh_training.rankrag.recipe import RecipeError

BUNDLED: Final = "bundled"
"""Name of the model that ships."""

POINTER: Final = "pointer"
"""Name of a new pointer model, warm-started from the base model."""


def folder_of(model: str) -> Path | None:
    """Return the folder of the model of that name; None if it is not on this machine."""
    if model == BUNDLED:
        return evenmesh_models.reader()
    return Path(model) if Path(model).is_dir() else None


def is_pointer(model: str) -> bool:
    """Return whether the model of that name, a folder or :data:`BUNDLED`, is a pointer model."""
    folder = Path(model)
    return model == BUNDLED or ((folder / "config.json").is_file() and model_type(folder) == MODEL_TYPE)


def load_pointer(model: str, *, seed: int = 0) -> tuple[PointerForConditionalGeneration, PairTokenizer]:
    """Load a pointer model and its tokenizer; ``seed`` draws the new weights of :data:`POINTER`.

    Raises:
        RecipeError: the model, or the base model, cannot be used.
    """
    try:
        loaded = new_reader(seed=seed) if model == POINTER else artifact.load(folder_of(model) or Path(model))
        return loaded, PairTokenizer(evenmesh_models.minilm())
    except (ArtifactError, BaseModelError) as error:
        raise RecipeError(str(error)) from None


def unfreeze(model: PointerForConditionalGeneration, frozen_layers: int) -> None:
    """Train all encoder layers above the lowest ``frozen_layers``; the embeddings stay the base model's.

    Raises:
        RecipeError: the model has fewer layers, or a layer to freeze is no longer the base model's.
    """
    if not 0 <= frozen_layers <= model.config.frozen_layers:
        raise RecipeError(
            f"frozen_layers must be from 0 to {model.config.frozen_layers}: higher layers are trained already"
        )
    model.config.frozen_layers = frozen_layers
    for layer in model.encoder.layers[frozen_layers:]:
        layer.requires_grad_(True)
