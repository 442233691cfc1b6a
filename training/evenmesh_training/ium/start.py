"""The model that training starts from: a new one, or any cross-encoder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from transformers import BertForSequenceClassification

from evenmesh_kit.compute import model_files
from evenmesh_kit.compute.model_files import ModelError
from evenmesh_kit.compute.placement import Placement
from evenmesh_kit.settings import SettingsError
from evenmesh_kit.settings import load as load_settings
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.trained_texts import TrainedTexts, trained_texts_of, write_trained_texts
from evenmesh_models import MINILM, MINILM_PACKAGE
from evenmesh_reranker import bundled
from evenmesh_reranker.backends import encoder
from evenmesh_reranker.domain import Agent
from evenmesh_reranker.models import tokens
from evenmesh_reranker.models.default_model import BUNDLED, default_model
from evenmesh_reranker.models.fusions import FIELD, Fusions
from evenmesh_reranker.settings import RerankerSettings
from evenmesh_training.ium.recipe import IumRecipe

FRESH: Final = "fresh"
"""Names a new model: the base encoder with a random head."""

CONFIG: Final = "config.json"
FROZEN_LAYERS: Final = 2
"""Lowest layers that a new model never trains, as its embeddings of words: these do not ship."""


def start(
    name_or_path: str, agents: Sequence[Agent], *, seed: int, max_length: int, fuses: bool = False
) -> tuple[Any, Any]:
    """Return tokenizer and model to start from, on the CPU, with tokens of the agents.

    Its scores are fused with none of a first stage, unless the fusion is learned, too: a weight that the
    model asks for was fitted to its scores before the training.

    Args:
        name_or_path: :data:`FRESH`, or what :func:`locate` takes.
        agents: agents that the model gets tokens for.
        seed: of the random head of a new model.
        max_length: longest pair that the model will serve. Tokens.
        fuses: whether the model keeps the fusion that it asks for.

    Raises:
        ModelError: there is no such model, or it cannot be trained.
    """
    if name_or_path == FRESH:
        tokenizer, model = fresh(seed=seed)
    else:
        tokenizer, model = load(locate(name_or_path))
    tokens.add_agents(tokenizer, model, agents)
    if not fuses and hasattr(model.config, FIELD):
        delattr(model.config, FIELD)
    tokenizer.model_max_length = min(max_length, tokenizer.model_max_length)
    return tokenizer, model


def locate(name_or_path: str) -> Path:
    """Return the folder of a model to start from.

    Args:
        name_or_path: a folder, a hub repository that was downloaded before, or :data:`BUNDLED`.

    Raises:
        ModelError: there is no such model.
    """
    if name_or_path != BUNDLED:
        return model_files.locate(name_or_path, allow_download=False)
    try:
        return default_model(load_settings(RerankerSettings).model_copy(update={"cross_encoder": BUNDLED}))[0]
    except SettingsError as error:
        raise ModelError(str(error)) from None


def fresh(*, seed: int, reader: Path | None = None) -> tuple[Any, Any]:
    """Return tokenizer and model of a new cross-encoder with a random head and tokens of unknown agents.

    Embeddings and the lowest :data:`FROZEN_LAYERS` layers do not require gradients.

    Args:
        seed: of the head.
        reader: weights (safetensors) of a pointer model on the same base, such as the bundled reader, whose
            upper layers to start from. It reads pairs of the same form and knows where an answer is; from
            the base model, which never read pairs, ranking is learned far more slowly.

    Raises:
        ModelError: the base model is missing or another one, or the reader has another shape.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = BertForSequenceClassification(bundled.base_config())
    missing, unexpected = model.load_state_dict(bundled.base_weights(), strict=False)
    if unexpected or {name.split(".")[0] for name in missing} != {"classifier"}:
        raise ModelError(f"{MINILM_PACKAGE} has another shape: {sorted([*missing, *unexpected])[:3]}")
    if reader is not None:
        _copy_upper_layers(model, reader)
    tokenizer = bundled.base_tokenizer()
    tokens.add_agents(tokenizer, model, ())
    model.requires_grad_(True)
    model.bert.embeddings.requires_grad_(False)
    for layer in model.bert.encoder.layer[:FROZEN_LAYERS]:
        layer.requires_grad_(False)
    model.train(mode=False)
    return tokenizer, model


def load(folder: Path) -> tuple[Any, Any]:
    """Return tokenizer and model of a folder, float32, on the CPU.

    Raises:
        ModelError: the model cannot be loaded.
    """
    loaded = encoder.load(folder, Placement(torch.device("cpu"), torch.float32))
    model: Any = loaded.model
    return loaded.tokenizer, model.float()


def save(tokenizer: Any, model: Any, folder: Path, texts: TrainedTexts | None = None) -> None:
    """Write both as the reranker serves them; the folder appears at once, complete.

    Args:
        tokenizer: the tokenizer.
        model: the model.
        folder: where to.
        texts: what the model was trained on; None where that is unknown.
    """
    beside = folder.with_name(f".{folder.name}")
    model.save_pretrained(beside)
    tokenizer.save_pretrained(beside)
    if texts is not None:
        write_trained_texts(texts, beside)
    beside.replace(folder)


def copy_fused(source: Path, folder: Path, fusions: Fusions, texts: TrainedTexts) -> None:
    """Write a copy of a model whose scores are fused in other ways; the folder appears at once, complete.

    Args:
        source: as :func:`save` writes it.
        folder: where to.
        fusions: of the copy.
        texts: what it was trained on, and its fusions were chosen by.
    """
    beside = folder.with_name(f".{folder.name}")
    shutil.copytree(source, beside, dirs_exist_ok=True)
    config = beside / CONFIG
    given = json.loads(config.read_bytes()) | {FIELD: fusions.dumped()}
    config.write_text(json.dumps(given, indent=2) + "\n", encoding="utf-8")
    write_trained_texts(texts, beside)
    beside.replace(folder)


def fusions_of(folder: Path) -> Fusions:
    """Return how the scores of a model are fused.

    Args:
        folder: as :func:`save` writes it.
    """
    return Fusions.parse(json.loads((folder / CONFIG).read_bytes()).get(FIELD))


def texts_of(name_or_path: str) -> TrainedTexts:
    """Return what a model to start from was trained on, as :func:`start` takes its name.

    Raises:
        ModelError: there is no such model, or what it says that it was trained on cannot be read.
    """
    if name_or_path == FRESH:
        return TrainedTexts((), (MINILM,))
    folder = locate(name_or_path)
    try:
        return trained_texts_of(folder, Path(name_or_path).name)
    except FileError as error:
        raise ModelError(str(error)) from None


def choose_trained(tokenizer: Any, model: Any, recipe: IumRecipe) -> None:
    """Require gradients of the parameters that the recipe trains, and of no others.

    Raises:
        ModelError: the model has not the layers that the recipe freezes.
    """
    model.requires_grad_(True)
    if recipe.frozen_layers:
        layers = getattr(getattr(model.base_model, "encoder", None), "layer", None)
        if layers is None or len(layers) < recipe.frozen_layers:
            raise ModelError(f"the model has no {recipe.frozen_layers} layers to freeze")
        for layer in layers[: recipe.frozen_layers]:
            layer.requires_grad_(False)
    if recipe.frozen_words:
        model.base_model.embeddings.requires_grad_(False)
        words: Any = model.get_input_embeddings().weight
        words.requires_grad_(True)
        trained = torch.zeros(len(words), 1)
        trained[tokenizer.convert_tokens_to_ids(list(tokens.present(tokenizer)))] = 1
        # Adam leaves a row alone whose gradient always was 0.
        words.register_hook(lambda gradient: gradient * trained.to(gradient))


def _copy_upper_layers(model: Any, reader: Path) -> None:
    theirs, mine = "encoder.layers.", "bert.encoder.layer."
    found = {
        f"{mine}{name.removeprefix(theirs)}": tensor.float()
        for name, tensor in load_file(reader).items()
        if name.startswith(theirs)
    }
    upper = tuple(f"{mine}{layer}." for layer in range(FROZEN_LAYERS, model.config.num_hidden_layers))
    wanted = {name: one.shape for name, one in model.state_dict().items() if name.startswith(upper)}
    if {name: one.shape for name, one in found.items()} != wanted:
        raise ModelError(f"{reader} has no upper layers of a pointer model on {MINILM_PACKAGE}")
    model.load_state_dict(found, strict=False)
