"""The shipped form of the pointer model: what was trained, in bfloat16; the rest is the base package's."""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from services.generator.pointer import base
from services.generator.pointer.configuration import PointerConfig
from services.generator.pointer.modeling import PointerForConditionalGeneration

WEIGHTS = "model.safetensors"
CONFIG = "config.json"


class ArtifactError(RuntimeError):
    """The shipped model cannot be used: a file is missing or damaged, or the base is another one."""


def bundled() -> Path:
    """The folder of the model that ships with the package."""
    return Path(__file__).parent / "weights"


def save(model: PointerForConditionalGeneration, folder: Path) -> None:
    """Write the trained tensors of ``model`` (bfloat16 safetensors) and its configuration to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    frozen = base.frozen_names(model)
    trained = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.named_parameters()
        if name not in frozen
    }
    temporary = folder / f"{WEIGHTS}.new"
    save_file(trained, temporary, metadata={"format": "pt"})
    temporary.replace(folder / WEIGHTS)
    settings = model.config.to_diff_dict() | {"weights_sha256": base.fingerprint(folder / WEIGHTS)}
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def lean(folder: Path, bias: float) -> None:
    """Set the bias towards abstaining of the model in ``folder``; see :class:`PointerConfig`."""
    path = folder / CONFIG
    settings = json.loads(path.read_text(encoding="utf-8")) | {"abstention_bias": round(bias, 4)}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load(folder: Path | None = None, *, base_weights: Path | None = None) -> PointerForConditionalGeneration:
    """The model in ``folder`` (default: the bundled one), float32, ready to answer.

    ``base_weights``: file of the frozen tensors (default: the base package's).

    Raises:
        ArtifactError: a file is missing, damaged or of another shape, or the base weights are not those
            the model was trained on.
        BaseModelError: the base package is not installed.
    """
    folder = bundled() if folder is None else folder
    weights_path, config_path = folder / WEIGHTS, folder / CONFIG
    for path in (weights_path, config_path):
        if not path.is_file():
            raise ArtifactError(f"the pointer model is incomplete: {path} is missing")
    config = PointerConfig(**json.loads(config_path.read_text(encoding="utf-8")))
    if config.weights_sha256 != base.fingerprint(weights_path):
        raise ArtifactError(f"{weights_path} is damaged (SHA-256 differs from {CONFIG}): reinstall ragmesh")
    base_path = base.weights_path() if base_weights is None else base_weights
    found = base.fingerprint(base_path)
    if found != config.base_sha256:
        raise ArtifactError(
            f"the pointer model needs the {config.base_package} weights with SHA-256 {config.base_sha256}, "
            f"but {base_path} has {found}"
        )
    # Another tokenizer gives other ids, and answers that are nonsense rather than errors.
    if config.tokenizer_sha256 is not None:
        tokenizer_path = base.tokenizer_path()
        if base.fingerprint(tokenizer_path) != config.tokenizer_sha256:
            raise ArtifactError(
                f"the pointer model needs the {config.base_package} tokenizer it was trained with, "
                f"but {tokenizer_path} is another"
            )
    model = base.blank(config)
    frozen = base.frozen_names(model)
    try:
        state = base.translate(load_file(base_path))
        state = {name: tensor for name, tensor in state.items() if name in frozen}
        state |= {name: tensor.float() for name, tensor in load_file(weights_path).items()}
        model.load_state_dict(state, strict=True)
    except (SafetensorError, RuntimeError) as error:
        raise ArtifactError(f"{weights_path} does not fit its configuration: {error}") from error
    model.train(False)
    return model
