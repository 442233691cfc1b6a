"""The shipped form of the pointer model: the trained tensors in bfloat16; the frozen ones are the base
model's.

Only :func:`load` needs ``transformers``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

import evenmesh_models
from evenmesh_generator.pointer.confidence import Confidence
from evenmesh_generator.pointer.settings import CONFIG, ArtifactError, PointerSettings
from evenmesh_models import MINILM_PACKAGE, MINILM_SHA256, TOKENIZER, WEIGHTS, fingerprint

if TYPE_CHECKING:
    from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration

_ENCODER_LAYERS = "encoder.layers."


@dataclass(frozen=True)
class Artifact:
    """A model as it was read.

    Attributes:
        settings: what its configuration states.
        weights: float32, by their names in the model.
    """

    settings: PointerSettings
    weights: dict[str, Tensor]


def translated(name: str) -> str | None:
    """Return the name that a tensor of the base encoder has in the pointer model; None for the pooler's."""
    if name.startswith("embeddings.") and not name.endswith("position_ids"):
        return f"encoder.{name}"
    if name.startswith("encoder.layer."):
        return f"{_ENCODER_LAYERS}{name.removeprefix('encoder.layer.')}"
    return None


def translate(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the base encoder's tensors under the pointer encoder's names, without the pooler."""
    return {new: tensor for name, tensor in weights.items() if (new := translated(name)) is not None}


def frozen_names(model: PointerForConditionalGeneration) -> set[str]:
    """Return the names of the parameters that are the base model's, and so are not shipped."""
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def save(model: PointerForConditionalGeneration, folder: Path) -> None:
    """Write the trained tensors of ``model`` (bfloat16 safetensors) and its configuration to ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    frozen = frozen_names(model)
    trained = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.named_parameters()
        if name not in frozen
    }
    temporary = folder / f"{WEIGHTS}.new"
    save_file(trained, temporary, metadata={"format": "pt"})
    temporary.replace(folder / WEIGHTS)
    _write_config(folder, model.config.to_diff_dict() | {"weights_sha256": fingerprint(folder / WEIGHTS)})


def set_abstention_bias(folder: Path, bias: float) -> None:
    """Set the abstention bias, in nats, of the model in ``folder``; see :class:`PointerConfig`.

    A calibration is of answers with another bias, and is removed.
    """
    settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    _write_config(folder, settings | {"abstention_bias": round(bias, 4), "confidence": None})


def set_confidence(folder: Path, confidence: Confidence) -> None:
    """Set the calibration of the answers of the model in ``folder``."""
    settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    _write_config(folder, settings | {"confidence": confidence.settings()})


def read(folder: Path | None = None, *, base_weights: Path | None = None, encodes: bool = True) -> Artifact:
    """Read the model in ``folder`` (default: the bundled one).

    Args:
        base_weights: file of the frozen tensors (default: the installed base model's).
        encodes: whether the encoder's layers are read, too.

    Raises:
        ArtifactError: a file is missing, damaged or of another shape, a setting is out of range, or the base
            weights or tokenizer are not those the model was trained with.
        BaseModelError: the base model is not installed, or is another one.
    """
    folder = evenmesh_models.reader() if folder is None else folder
    weights_path = folder / WEIGHTS
    for path in (weights_path, folder / CONFIG):
        if not path.is_file():
            raise ArtifactError(f"the pointer model is incomplete: {path} is missing")
    settings = PointerSettings.read(folder)
    if settings.weights_sha256 != fingerprint(weights_path):
        raise ArtifactError(
            f"{weights_path} is damaged (SHA-256 differs from {CONFIG}): install or export it again"
        )
    base = evenmesh_models.minilm()
    base_path = base_weights or base / WEIGHTS
    found = MINILM_SHA256[WEIGHTS] if base_weights is None else fingerprint(base_weights)
    if found != settings.base_sha256:
        raise ArtifactError(
            f"the pointer model needs the {MINILM_PACKAGE} weights with SHA-256 {settings.base_sha256}, "
            f"but {base_path} has {found}"
        )
    # Another tokenizer gives other ids, and answers that are nonsense rather than errors.
    if settings.tokenizer_sha256 not in (None, MINILM_SHA256[TOKENIZER]):
        raise ArtifactError(
            f"the pointer model needs another {MINILM_PACKAGE} tokenizer than {base / TOKENIZER}"
        )
    wanted = {
        name: shape
        for name, shape in settings.shapes().items()
        if encodes or not name.startswith(_ENCODER_LAYERS)
    }
    weights: dict[str, Tensor] = {}
    try:
        with safe_open(base_path, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (it is no mapping)
                new = translated(name)
                if new in wanted and settings.is_frozen(new):
                    weights[new] = tensors.get_tensor(name)
        with safe_open(weights_path, framework="pt") as tensors:
            unknown = set(tensors.keys()) - settings.shapes().keys()
            for name in wanted.keys() & set(tensors.keys()):
                weights[name] = tensors.get_tensor(name).float()
    except (SafetensorError, RuntimeError) as error:
        raise ArtifactError(f"{weights_path} does not fit its configuration: {error}") from error
    wrong = sorted(unknown | {name for name, shape in wanted.items() if _shape(weights.get(name)) != shape})
    if wrong:
        raise ArtifactError(
            f"{weights_path} does not fit its configuration: "
            f"{wrong[0]} is missing, too much or of another shape"
        )
    return Artifact(settings, weights)


def load(folder: Path | None = None, *, base_weights: Path | None = None) -> PointerForConditionalGeneration:
    """Load the model in ``folder`` (default: the bundled one) in float32, ready to answer.

    Args and errors are those of :func:`read`.
    """
    from transformers import initialization as init

    from evenmesh_generator.pointer.configuration import PointerConfig
    from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration

    folder = evenmesh_models.reader() if folder is None else folder
    weights = read(folder, base_weights=base_weights).weights
    with init.no_init_weights():  # every parameter is loaded: drawing them first would take seconds
        model = PointerForConditionalGeneration(
            PointerConfig(**json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        )
    model.load_state_dict(weights, strict=True)
    model.train(False)
    return model


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def _write_config(folder: Path, settings: dict[str, object]) -> None:
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
