"""The model that training starts from: a new one, one that ships, or any cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from meshkit import models
from meshkit.placement import Placement
from services.reranker.backends import encoder
from services.reranker.bundled import base
from services.reranker.domain import Agent
from services.reranker.models import tokens
from services.reranker.training.recipe import Recipe

FRESH: Final = "fresh"
"""Names a new model: the encoder of the base package with a drawn head."""


def start(name_or_path: str, agents: Sequence[Agent], *, seed: int, max_length: int) -> tuple[Any, Any]:
    """Tokenizer and model to begin with, on the CPU, with tokens of the agents.

    Args:
        name_or_path: :data:`FRESH`, a folder, or a hub repository that was downloaded before.
        agents: whom it is to know.
        seed: of what is drawn of a new model.
        max_length: longest pair that it will be served. Tokens.

    Raises:
        ModelError: there is no such model, or it cannot be trained.
    """
    if name_or_path == FRESH:
        tokenizer, model = base.fresh(seed=seed)
    else:
        tokenizer, model = load(models.locate(name_or_path, allow_download=False))
    tokens.add_agents(tokenizer, model, agents)
    tokenizer.model_max_length = min(max_length, tokenizer.model_max_length)
    return tokenizer, model


def load(folder: Path) -> tuple[Any, Any]:
    """Tokenizer and model of a folder, float32, on the CPU.

    Raises:
        ModelError: it cannot be loaded.
    """
    loaded = encoder.load(folder, Placement(torch.device("cpu"), torch.float32))
    model: Any = loaded.model
    return loaded.tokenizer, model.float()


def save(tokenizer: Any, model: Any, folder: Path) -> None:
    """Writes both so that the reranker can serve them; the folder is there whole or not at all."""
    beside = folder.with_name(f".{folder.name}")
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    beside.replace(folder)


def choose_trained(tokenizer: Any, model: Any, recipe: Recipe) -> None:
    """Lets require gradients what the recipe trains.

    Raises:
        ModelError: the model is none of which layers can be kept as they are.
    """
    model.requires_grad_(True)
    if recipe.frozen_layers:
        layers = getattr(getattr(model.base_model, "encoder", None), "layer", None)
        if layers is None or len(layers) < recipe.frozen_layers:
            raise models.ModelError(f"the model has no {recipe.frozen_layers} layers to keep as they are")
        for layer in layers[: recipe.frozen_layers]:
            layer.requires_grad_(False)
    if recipe.frozen_words:
        for parameter in model.base_model.embeddings.parameters():
            parameter.requires_grad_(False)
        words: Any = model.get_input_embeddings().weight
        words.requires_grad_(True)
        of_agents = tokenizer.convert_tokens_to_ids(list(tokens.present(tokenizer)))
        trained = torch.zeros(len(words), 1)
        trained[of_agents] = 1
        # Adam leaves a row as it is whose gradient always was 0.
        words.register_hook(lambda gradient: gradient * trained.to(gradient))
