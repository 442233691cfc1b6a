"""What queries and passages of known models begin with, where nothing else says so."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_E5: Final = ("query: ", "passage: ")
_E5_SIZES: Final = ("small", "base", "large")
KNOWN_PREFIXES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        name.format(size): _E5
        for name in ("e5-{}", "e5-{}-v2", "e5-{}-unsupervised", "multilingual-e5-{}")
        for size in _E5_SIZES
    }
)
"""What queries and passages begin with, by the last part of a model's name, where its folder does not say.

Wang et al., "Text Embeddings by Weakly-Supervised Contrastive Pre-training", 2022, section 4.
"""


def known_prefixes(model: str) -> tuple[str, str]:
    """Return what queries and passages of a model begin with, by the last part of its name; else nothing."""
    return KNOWN_PREFIXES.get(model.rpartition("/")[2], ("", ""))
