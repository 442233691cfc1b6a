"""What the keys and values of a transformers model take, from its configuration."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from evenmesh_generator.runtime.networks.protocol import Footprint


def decoder_only(model: PreTrainedModel) -> Footprint:
    """Return the footprint of a decoder-only model; zeros if its configuration names no attention heads."""
    config: Any = model.config.get_text_config()
    layers = int(getattr(config, "num_hidden_layers", None) or 1)
    many = getattr(config, "num_attention_heads", None)
    heads = getattr(config, "num_key_value_heads", None) or many
    size = getattr(config, "head_dim", None) or (config.hidden_size // many if many else 0)
    token = 2 * layers * int(heads or 0) * int(size) * _width(model)
    return Footprint(own=token, source=0, read=token, layers=layers)


def encoder_decoder(model: PreTrainedModel) -> Footprint:
    """Return the footprint of an encoder–decoder, whose heads may be wider than its states together (T5)."""
    config: Any = model.config.get_text_config()
    layers = int(getattr(config, "num_decoder_layers", None) or config.decoder_layers)
    hidden = int(config.hidden_size)
    heads = int(getattr(config, "decoder_attention_heads", None) or config.num_attention_heads)
    size = int(getattr(config, "d_kv", None) or hidden // heads)
    token = 2 * layers * heads * size * _width(model)
    return Footprint(own=token, source=token, read=token + hidden * _width(model), layers=layers)


def _width(model: PreTrainedModel) -> int:
    return torch.empty(0, dtype=model.dtype).element_size()
