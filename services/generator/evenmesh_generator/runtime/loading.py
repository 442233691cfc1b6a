"""Loading transformers models from a folder: safetensors only, and no code of theirs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_accelerate_available

from evenmesh_kit.compute.model_files import ModelError, one_line
from evenmesh_kit.compute.placement import LOADING, Placement

_log = logging.getLogger("evenmesh.generator.runtime")


def load(folder: Path, placement: Placement) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model, ready to compute, and its tokenizer.

    Weights of a GPU are read straight to it, tensor by tensor, where ``accelerate`` is installed; without it
    the whole model is in the host's memory first.

    Raises:
        ModelError: weights or tokenizer are missing or do not fit the configuration, or the architecture
            would need custom code.
    """
    _log_with_others()
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"{folder} has no *.safetensors weights; other formats are not loaded")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with LOADING:
            model = auto.from_pretrained(
                folder,
                config=config,
                dtype=placement.dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                **_straight_to(placement.device),
            )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelError(f"{folder} cannot be loaded: {one_line(error)}") from None
    return model.to(placement.device).eval(), tokenizer


def _straight_to(device: torch.device) -> dict[str, Any]:
    """Return what makes transformers read weights to a GPU without a copy of all of them on the host."""
    if device.type != "cuda":
        return {}
    if not is_accelerate_available():
        _log.warning(
            "the model's weights pass through the host's memory, because accelerate is not installed: in a "
            "checkout, pip install './services/generator[gpu]'"
        )
        return {}
    return {"device_map": {"": device}}


def shape(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model without weights, with its generation settings, and its tokenizer.

    Raises:
        ModelError: as :func:`load`.
    """
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        auto: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"):
            model = auto.from_config(config)
        if (folder / "generation_config.json").is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(f"{folder} cannot be loaded: {one_line(error)}") from None
    return model, tokenizer


def _log_with_others() -> None:
    """Send the library's log lines where every other line goes, and no progress bars."""
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
