"""The shipped form of the cross-encoder: what differs from the base package, in bfloat16."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertForSequenceClassification

from meshkit.models import ModelError, one_line
from services.reranker.bundled import base

WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "bundled.json"

_WORDS: Final = "bert.embeddings.word_embeddings.weight"
_AGENTS: Final = "agent_tokens"


def folder() -> Path:
    """Where the files that ship are."""
    return Path(__file__).parent / "weights"


def available(shipped: Path | None = None) -> bool:
    """Whether it ships with this build."""
    return ((shipped or folder()) / CONFIG).is_file()


def export(model: Any, tokenizer: Any, target: Path, **record: Any) -> int:
    """Writes what of a model differs from the base, and returns its size in bytes.

    Args:
        model: begun by :func:`services.reranker.bundled.base.fresh`; the embeddings of words are the base's.
        tokenizer: its own, with tokens of agents.
        target: folder for the two files; made if it is not there.
        record: how it was trained, for people.

    Raises:
        ModelError: it differs where it may not.
    """
    begun = base.weights()
    trained: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name == _WORDS:
            words = len(begun[name])
            if not torch.equal(tensor[:words], begun[name]):
                raise ModelError("the embeddings of words are not those of the base package")
            trained[_AGENTS] = tensor[words:].detach().clone().contiguous()
        elif name not in begun or not torch.equal(tensor, begun[name]):
            trained[name] = tensor.detach().to(torch.bfloat16).contiguous()
    target.mkdir(parents=True, exist_ok=True)
    beside = target / f".{WEIGHTS}"
    save_file(trained, beside, metadata={"format": "pt"})
    beside.replace(target / WEIGHTS)
    config = {
        "base_package": base.PACKAGE,
        "base_sha256": base.fingerprint(base.folder() / WEIGHTS),
        "tokenizer_sha256": base.fingerprint(base.folder() / "tokenizer.json"),
        "weights_sha256": base.fingerprint(target / WEIGHTS),
        "max_length": tokenizer.model_max_length,
        "tokens": tokenizer.convert_ids_to_tokens(list(range(len(begun[_WORDS]), len(tokenizer)))),
        "record": record,
    }
    (target / CONFIG).write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return (target / WEIGHTS).stat().st_size


def put_together(home: Path, *, shipped: Path | None = None) -> Path:
    """The folder of the whole model (float32), made below ``home`` if it is not there; whole or not there.

    Raises:
        ModelError: it does not ship with this build, is damaged, or the base package is another one.
        OSError: the folder cannot be written.
    """
    source = shipped or folder()
    config = _checked(source)
    target = home / str(config["weights_sha256"])[:16]
    if target.is_dir():
        return target
    model, tokenizer = _whole(source, config)
    home.mkdir(parents=True, exist_ok=True)
    beside = home / f".{secrets.token_hex(8)}"
    try:
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        try:
            beside.rename(target)
        except OSError:
            if not target.is_dir():  # not by another process meanwhile
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _checked(source: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((source / CONFIG).read_bytes())
    except OSError:
        raise ModelError("no cross-encoder ships with this build of ragmesh") from None
    for path, name, what in (
        (source / WEIGHTS, "weights_sha256", "reinstall ragmesh"),
        (base.folder() / WEIGHTS, "base_sha256", f"install the {base.PACKAGE} it was trained from"),
        (
            base.folder() / "tokenizer.json",
            "tokenizer_sha256",
            f"install the {base.PACKAGE} it was trained from",
        ),
    ):
        if not path.is_file() or base.fingerprint(path) != config[name]:
            raise ModelError(f"{path} is missing or another one: {what}")
    return config


def _whole(source: Path, config: dict[str, Any]) -> tuple[Any, Any]:
    try:
        trained = load_file(source / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{source / WEIGHTS} cannot be loaded: {one_line(error)}") from None
    tokenizer = base.tokenizer()
    tokenizer.add_tokens(list(config["tokens"]), special_tokens=True)
    tokenizer.model_max_length = int(config["max_length"])
    model = BertForSequenceClassification(base.config())
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    state = base.weights()
    state[_WORDS] = torch.cat([state[_WORDS], trained.pop(_AGENTS)])
    state.update({name: one.float() for name, one in trained.items()})
    model.load_state_dict(state)
    model.train(mode=False)
    return model, tokenizer
