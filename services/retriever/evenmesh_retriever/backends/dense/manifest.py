"""Describe a dense index in a file next to it."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE_NAME: Final = "dense.json"
INDEX_NAME: Final = "dense.faiss"

Kind = Literal["flat", "hnsw", "ivf-pq"]


class CorruptIndex(Exception):  # noqa: N818 - a finding
    """A dense index is not what its manifest says; the message names the file."""


class DenseManifest(BaseModel):
    """How the vectors of a segment are searched, and how well, measured when it was built."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    """``flat`` compares all vectors and needs no file."""
    num_vectors: int = Field(ge=0)
    dimension: int = Field(ge=0)
    recall_at_100: float = Field(ge=0, le=1)
    """Share of the exact best 100 that a search finds; 1 for ``flat``."""
    parameters: dict[str, int] = Field(default_factory=dict)
    """What the index was built with, and how far a search looks (``ef_search`` or ``nprobe``, ``fetched`` as
    a multiple of what is asked for) to find that many."""
    tried: dict[str, float] = Field(default_factory=dict)
    """Recall of what was tried and not taken."""

    def write(self, folder: Path) -> None:
        """Write it into the index's folder."""
        (folder / FILE_NAME).write_text(self.model_dump_json(indent=1), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> DenseManifest:
        """Read it.

        Raises:
            CorruptIndex: it is missing, or not a manifest.
        """
        path = folder / FILE_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise CorruptIndex(f"{path} cannot be read: {error.strerror}") from None
        except ValidationError:
            raise CorruptIndex(f"{path} is not the manifest of a dense index") from None
