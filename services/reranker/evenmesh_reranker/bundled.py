"""The bundled cross-encoder: assemble the whole model from the base model and the trained part that ships.

PyTorch is imported only where there is something to assemble. The trained part is in bfloat16.
:mod:`evenmesh_training.bundled.reranker_export` writes it.
"""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors import SafetensorError

import evenmesh_models
from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_models import MINILM_PACKAGE, MINILM_SHA256, TOKENIZER, WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BertConfig

CONFIG: Final = "bundled.json"
"""Name of the configuration in the shipped folder."""

MAX_LENGTH: Final = 256
"""Longest pair of a new model (Salemi & Zamani, section 5.1). Tokens."""

WORDS: Final = "bert.embeddings.word_embeddings.weight"
"""Name of the embeddings in the whole model; the base model has those of words only."""

TRAINED_TEXTS: Final = "trained_texts.bloom"
"""Name of the hashes of what a model was trained on: copied, as later training adds to them."""

AGENT_TOKENS: Final = "agent_tokens"
"""Name of the embeddings of agent tokens in the trained part."""


def base_folder() -> Path:
    """Return the folder of the base model.

    Raises:
        ModelError: the base model is not installed, or is another one.
    """
    try:
        return evenmesh_models.minilm()
    except evenmesh_models.BaseModelError as error:
        raise ModelError(str(error)) from None


def base_config() -> BertConfig:
    """Return the configuration of all-MiniLM-L6-v2 with one label.

    Without dropout, a CPU computes attention with its fast kernels.
    """
    from transformers import BertConfig

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


def base_tokenizer() -> Any:
    """Return the base model's tokenizer, which cuts pairs to :data:`MAX_LENGTH`."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(base_folder(), model_max_length=MAX_LENGTH, trust_remote_code=False)


def base_weights() -> dict[str, Tensor]:
    """Return the base model's tensors (float32) under the names of a sequence classifier."""
    from safetensors.torch import load_file

    found = load_file(base_folder() / WEIGHTS)
    return {f"bert.{name}": one for name, one in found.items() if not name.endswith("position_ids")}


def assembled(home: Path) -> Path:
    """Return the folder of the whole bundled model below ``home``.

    If it is missing, another process writes it, which alone imports PyTorch.

    Raises:
        ModelError: the trained part is missing or damaged, the base model is another one, or the folder
            cannot be written.
    """
    source = evenmesh_models.cross_encoder()
    _checked(source)
    target = _target(home, source)
    if not target.is_dir():
        command = [sys.executable, "-P", "-m", __name__, str(home), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own
        if done.returncode:
            said = (done.stdout.strip() or done.stderr.strip() or f"status {done.returncode}").splitlines()
            raise ModelError(f"the bundled model cannot be assembled: {said[-1][:300]}")
    return target


def assemble(home: Path, *, shipped: Path | None = None) -> Path:
    """Return the folder of the whole model (float32) below ``home``; write it if it is missing.

    Args:
        home: the folder appears there at once, under a name made of the configuration's digest, which holds
            that of the trained part.
        shipped: folder of the trained part; None: the bundled one.

    Raises:
        ModelError: the trained part is missing or damaged, or the base model is another one.
        OSError: the folder cannot be written.
    """
    source = shipped or evenmesh_models.cross_encoder()
    config = _checked(source)
    target = _target(home, source)
    if target.is_dir():
        return target
    home.mkdir(parents=True, exist_ok=True)  # first: where it cannot be made, PyTorch need not be imported
    model, tokenizer = _whole(source, config)
    beside = home / f".{secrets.token_hex(8)}"
    try:
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        if (source / TRAINED_TEXTS).is_file():
            shutil.copyfile(source / TRAINED_TEXTS, beside / TRAINED_TEXTS)
        try:
            beside.rename(target)
        except OSError:
            if not target.is_dir():  # unless another process was faster
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _target(home: Path, source: Path) -> Path:
    return home / evenmesh_models.fingerprint(source / CONFIG)[:16]


def _checked(source: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((source / CONFIG).read_bytes())
    except OSError:
        raise ModelError("no cross-encoder ships with this build of evenmesh") from None
    weights = source / WEIGHTS
    if not weights.is_file() or evenmesh_models.fingerprint(weights) != config["weights_sha256"]:
        raise ModelError(f"{weights} is missing or damaged: reinstall evenmesh-models")
    base_folder()
    for file, key in ((WEIGHTS, "base_sha256"), (TOKENIZER, "tokenizer_sha256")):
        if config[key] != MINILM_SHA256[file]:
            raise ModelError(f"{source} was trained from another {file} than that of {MINILM_PACKAGE}")
    return config


def _whole(source: Path, config: dict[str, Any]) -> tuple[Any, Any]:
    import torch
    from safetensors.torch import load_file
    from transformers import BertForSequenceClassification

    try:
        trained = load_file(source / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{source / WEIGHTS} cannot be loaded: {one_line(error)}") from None
    tokenizer = base_tokenizer()
    tokenizer.add_tokens(list(config["tokens"]), special_tokens=True)
    tokenizer.model_max_length = int(config["max_length"])
    model = BertForSequenceClassification(base_config())
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    state = base_weights()
    state[WORDS] = torch.cat([state[WORDS], trained.pop(AGENT_TOKENS)])
    state.update({name: one.float() for name, one in trained.items()})
    model.load_state_dict(state)
    if fusion := config.get("fusion"):
        model.config.evenmesh_fusion = fusion
    model.config.evenmesh_reads_asking = bool(config.get("reads_asking"))
    model.train(mode=False)
    return model, tokenizer


if __name__ == "__main__":
    try:
        assemble(Path(sys.argv[1]), shipped=Path(sys.argv[2]))
    except (ModelError, OSError) as error:
        sys.exit(one_line(error))
