"""Distinguish encoder–decoders from decoder-only models without loading them."""

from __future__ import annotations

import json
from pathlib import Path

from evenmesh_kit.compute.model_files import ModelError, one_line


def is_encoder_decoder(folder: Path) -> bool:
    """Return whether the model in ``folder`` is an encoder–decoder, by its configuration.

    Raises:
        ModelError: there is no configuration.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        # Saved configurations name what differs from the class's default, and T5's is True.
        declared = config.get("is_encoder_decoder")
        named = any("ConditionalGeneration" in name for name in config.get("architectures") or ())
        return bool(declared) if declared is not None else named
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"{folder} has no usable config.json: {one_line(error)}") from None
