"""Start a new pointer model from the base model."""

import torch
from safetensors.torch import load_file
from torch import Tensor

import evenmesh_models
from evenmesh_generator.pointer.artifact import translate
from evenmesh_generator.pointer.configuration import PointerConfig
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_models import MINILM_SHA256, TOKENIZER, WEIGHTS


def warm_start(
    config: PointerConfig, weights: dict[str, Tensor], *, seed: int
) -> PointerForConditionalGeneration:
    """Return a new model that starts from the base ``weights``; draw what the base lacks from ``seed``.

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
        raise ValueError(f"the base weights hold what the model does not: {sorted(unexpected)[:3]}")
    model.load_state_dict(state, strict=False)
    return model


def new_reader(*, seed: int) -> PointerForConditionalGeneration:
    """Return a new model from the installed base model, and note its fingerprints in the configuration.

    Raises:
        BaseModelError: the base model is not installed, or is another one.
    """
    weights = load_file(evenmesh_models.minilm() / WEIGHTS)
    config = PointerConfig(base_sha256=MINILM_SHA256[WEIGHTS], tokenizer_sha256=MINILM_SHA256[TOKENIZER])
    return warm_start(config, weights, seed=seed)
