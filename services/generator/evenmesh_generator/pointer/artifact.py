"""The shipped form of the pointer model: the trained tensors in bfloat16; the frozen ones are the base
model's.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedConfig
from transformers import initialization as init

import evenmesh_models
from evenmesh_generator.pointer.confidence import Confidence
from evenmesh_generator.pointer.configuration import PointerConfig
from evenmesh_generator.pointer.modeling import PointerForConditionalGeneration
from evenmesh_models import MINILM_PACKAGE, MINILM_SHA256, TOKENIZER, WEIGHTS, fingerprint

CONFIG = "config.json"


class ArtifactError(RuntimeError):
    """Raised when a pointer model is incomplete, damaged, or made for other base weights."""


def translate(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the base encoder's tensors under the pointer encoder's names, without the pooler."""
    renamed = {}
    for name, tensor in weights.items():
        if name.startswith("embeddings.") and not name.endswith("position_ids"):
            renamed[f"encoder.{name}"] = tensor
        elif name.startswith("encoder.layer."):
            renamed[f"encoder.layers.{name.removeprefix('encoder.layer.')}"] = tensor
    return renamed


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


def confidence_of(config: PreTrainedConfig) -> Confidence | None:
    """Return the calibration of a model; None if it has none.

    Raises:
        ArtifactError: it is out of range.
    """
    if config.confidence is None:
        return None
    try:
        return Confidence.of(config.confidence)
    except ValueError as error:
        raise ArtifactError(f"{CONFIG}: confidence {error}") from None


def load(folder: Path | None = None, *, base_weights: Path | None = None) -> PointerForConditionalGeneration:
    """Load the model in ``folder`` (default: the bundled one) in float32, ready to answer.

    ``base_weights``: file of the frozen tensors (default: the installed base model's).

    Raises:
        ArtifactError: a file is missing, damaged or of another shape, a setting is out of range, or the base
            weights or tokenizer are not those the model was trained with.
        BaseModelError: the base model is not installed, or is another one.
    """
    folder = evenmesh_models.reader() if folder is None else folder
    weights_path, config_path = folder / WEIGHTS, folder / CONFIG
    for path in (weights_path, config_path):
        if not path.is_file():
            raise ArtifactError(f"the pointer model is incomplete: {path} is missing")
    config = PointerConfig(**json.loads(config_path.read_text(encoding="utf-8")))
    confidence_of(config)
    if config.weights_sha256 != fingerprint(weights_path):
        raise ArtifactError(
            f"{weights_path} is damaged (SHA-256 differs from {CONFIG}): install or export it again"
        )
    base = evenmesh_models.minilm()
    base_path = base_weights or base / WEIGHTS
    found = MINILM_SHA256[WEIGHTS] if base_weights is None else fingerprint(base_weights)
    if found != config.base_sha256:
        raise ArtifactError(
            f"the pointer model needs the {MINILM_PACKAGE} weights with SHA-256 {config.base_sha256}, "
            f"but {base_path} has {found}"
        )
    # Another tokenizer gives other ids, and answers that are nonsense rather than errors.
    if config.tokenizer_sha256 not in (None, MINILM_SHA256[TOKENIZER]):
        raise ArtifactError(
            f"the pointer model needs another {MINILM_PACKAGE} tokenizer than {base / TOKENIZER}"
        )
    with init.no_init_weights():  # every parameter is loaded: drawing them first would take seconds
        model = PointerForConditionalGeneration(config)
    frozen = frozen_names(model)
    try:
        state = {name: tensor for name, tensor in translate(load_file(base_path)).items() if name in frozen}
        state |= {name: tensor.float() for name, tensor in load_file(weights_path).items()}
        model.load_state_dict(state, strict=True)
    except (SafetensorError, RuntimeError) as error:
        raise ArtifactError(f"{weights_path} does not fit its configuration: {error}") from error
    model.train(False)
    return model


def _write_config(folder: Path, settings: dict[str, object]) -> None:
    text = json.dumps(settings, indent=2, sort_keys=True) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
