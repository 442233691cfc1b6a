"""Retrieval expressions such as ``SE@RR@5&Wiki@5@CP`` as values.

Operations bind as in the paper: reranking before truncation, before concatenation, before compression (Li et
al., 2024, section 2.1). ``str`` of any part gives text that parses to an equal part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

PARAMETRIC_KNOWLEDGE: Final = "PK"
"""Name of the source for what the model itself knows, written as a document."""
RETRIEVAL_FREE: Final = "ReFree"
"""Expression without passages."""
RESERVED: Final = frozenset({PARAMETRIC_KNOWLEDGE, RETRIEVAL_FREE})
"""Names that sources cannot have."""
MAX_KEPT: Final = 1000
"""Most passages that ``@k`` can keep. Passages."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source by its name in the settings; ``column`` is its position in the text, from 1."""

    name: str
    column: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ParametricKnowledge:
    """``PK``: a document that the model writes about the question."""

    def __str__(self) -> str:
        return PARAMETRIC_KNOWLEDGE


@dataclass(frozen=True, slots=True)
class Group:
    """``(a&b)``: a concatenation of one or more lists that can be reranked or truncated."""

    parts: tuple[Selection, ...]

    def __str__(self) -> str:
        return f"({_concatenated(self.parts)})"


Base: TypeAlias = Source | ParametricKnowledge | Group


@dataclass(frozen=True, slots=True)
class Selection:
    """``X@RR@k``: a list, optionally reranked, cut to ``keep`` passages, [1, 1000]; None for all."""

    base: Base
    reranked: bool = False
    keep: int | None = None

    def __str__(self) -> str:
        reranking = "@RR" if self.reranked else ""
        return f"{self.base}{reranking}" + ("" if self.keep is None else f"@{self.keep}")


@dataclass(frozen=True, slots=True)
class Expression:
    """A whole expression: concatenated lists, optionally compressed; ``ReFree`` has no list."""

    parts: tuple[Selection, ...] = ()
    compressed: bool = False

    def __str__(self) -> str:
        if not self.parts:
            return RETRIEVAL_FREE
        return _concatenated(self.parts) + ("@CP" if self.compressed else "")

    @property
    def is_retrieval_free(self) -> bool:
        """Whether it is ``ReFree``."""
        return not self.parts

    @property
    def is_parametric(self) -> bool:
        """Whether it is ``PK`` alone, which the generator runs without retrieval."""
        return self.parts == (Selection(ParametricKnowledge()),)


def _concatenated(parts: tuple[Selection, ...]) -> str:
    return "&".join(map(str, parts))
