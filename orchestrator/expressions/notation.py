"""Retrieval expressions as values: what ``SE@RR@5&Wiki@5@CP`` says, and how it is written.

Operations bind as in the paper: reranking before truncation, before concatenation, before compression (Li et
al., ensemble of retrievers, section 2.1). ``str`` of any part writes it so that it reads back as an equal
one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

PARAMETRIC_KNOWLEDGE: Final = "PK"
"""What the model itself knows, written down as a document."""
RETRIEVAL_FREE: Final = "ReFree"
"""No passages at all."""
RESERVED: Final = frozenset({PARAMETRIC_KNOWLEDGE, RETRIEVAL_FREE})
"""Names that sources cannot have."""
MAX_KEPT: Final = 1000
"""Most passages that ``@k`` can keep. Passages."""


@dataclass(frozen=True, slots=True)
class Source:
    """A source by the name it has in the settings; ``column`` is where it stands in the text, from 1."""

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
    """``(a&b)``: the concatenation of one or more lists, so that it can be reranked or truncated."""

    parts: tuple[Selection, ...]

    def __str__(self) -> str:
        return f"({_concatenated(self.parts)})"


Origin: TypeAlias = Source | ParametricKnowledge | Group


@dataclass(frozen=True, slots=True)
class Selection:
    """``X@RR@k``: a list, reranked if wanted, then its first ``keep`` passages, [1, 1000]; None for all."""

    origin: Origin
    reranked: bool = False
    keep: int | None = None

    def __str__(self) -> str:
        reranking = "@RR" if self.reranked else ""
        return f"{self.origin}{reranking}" + ("" if self.keep is None else f"@{self.keep}")


@dataclass(frozen=True, slots=True)
class Expression:
    """A whole expression: lists one after the other, compressed if wanted; ``ReFree`` has none."""

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
        """Whether it is ``PK`` alone, which the generator does by itself."""
        return self.parts == (Selection(ParametricKnowledge()),)


def _concatenated(parts: tuple[Selection, ...]) -> str:
    return "&".join(map(str, parts))
