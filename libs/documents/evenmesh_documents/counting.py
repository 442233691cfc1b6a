"""Count the length of a text, in words or in the tokens of a model."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

Counter = Callable[[str], int]
"""Returns the length of a text. That of two texts with white space between is at most the sum."""

_WORD: Final = re.compile(r"\S+")


def words(text: str) -> int:
    """Return the number of words: what stands between white space."""
    return len(_WORD.findall(text))


def bundled() -> Counter:
    """Return a counter of the tokens of the bundled models, which share a tokenizer.

    Raises:
        ValueError: their base model is not installed.
        ModuleNotFoundError: ``evenmesh_models`` or ``tokenizers`` is not installed.
    """
    from evenmesh_models import BaseModelError, minilm_folder

    try:
        return tokens(minilm_folder())
    except BaseModelError as exc:
        raise ValueError(str(exc)) from exc


def bundled_is_there() -> bool:
    """Return whether :func:`bundled` has what it needs."""
    try:
        bundled()
    except (ModuleNotFoundError, ValueError):
        return False
    return True


def tokens(path: Path) -> Counter:
    """Return a counter of the tokens of a model, without those that begin and end a text.

    Args:
        path: ``tokenizer.json`` of the model, or the folder that it is in.

    Raises:
        ValueError: it cannot be read.
        ModuleNotFoundError: ``tokenizers`` is not installed.
    """
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as exc:
        raise ValueError(f"{file}: cannot be read as a tokenizer ({exc})") from exc
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count
