"""What a model was trained on, as hashes: a file beside its weights that holds no text.

The file begins with a line of JSON, which gives counts and sizes, and continues with the bits of two filters:
of questions and of passages.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from evenmesh_core.errors import InvalidInput
from evenmesh_core.text_filter import MOST_HASHES, MOST_TEXTS, TextFilter
from evenmesh_lab.files.failure import FileError
from evenmesh_lab.files.records import replace_file

TRAINED_TEXTS: Final = "trained_texts.bloom"
"""Name of the file in a model's folder."""
MOST_BYTES: Final = 256 * 2**20
"""Largest file that is read."""
MOST_PARTS: Final = 64
"""Most trainings that one model has behind it."""

_HEADER_BYTES: Final = 64 * 1024
_FORMAT: Final = 1
_NAME: Final = 300


class _Sizes(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    count: int = Field(ge=0, le=MOST_TEXTS)
    hashes: int = Field(ge=1, le=MOST_HASHES)
    size: int = Field(ge=0, le=MOST_BYTES)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    training: str = Field(max_length=_NAME)
    questions: _Sizes
    passages: _Sizes


class _Header(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: int
    unhashed: list[str] = Field(max_length=MOST_PARTS)
    parts: list[_Part] = Field(max_length=MOST_PARTS)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingTexts:
    """The texts of one training.

    Attributes:
        name: what was trained, in a few words.
        questions: every question that was learned from.
        passages: every passage that was shown, or could have been.
    """

    name: str
    questions: TextFilter
    passages: TextFilter

    @classmethod
    def of(cls, name: str, questions: Iterable[str], passages: Iterable[str]) -> TrainingTexts:
        """Return the filters of a training's texts."""
        return cls(name[:_NAME], TextFilter.of(questions), TextFilter.of(passages))


@dataclass(frozen=True, slots=True, eq=False)
class TrainedTexts:
    """The texts of all trainings of a model.

    Attributes:
        trainings: the oldest first.
        unhashed: models that it started from whose texts are not among these, such as a language model's
            pre-training.
    """

    trainings: tuple[TrainingTexts, ...]
    unhashed: tuple[str, ...] = ()

    def has_question(self, text: str) -> bool:
        """Return whether a training had this question; see :class:`TextFilter` for how sure that is."""
        return any(text in one.questions for one in self.trainings)

    def has_passage(self, text: str) -> bool:
        """Return whether a training had this passage; its title does not count."""
        return any(text in one.passages for one in self.trainings)

    @property
    def num_questions(self) -> int:
        """Questions of all trainings, those of several counted for each."""
        return sum(one.questions.count for one in self.trainings)

    @property
    def num_passages(self) -> int:
        """Passages of all trainings, those of several counted for each."""
        return sum(one.passages.count for one in self.trainings)

    @property
    def false_positives(self) -> float:
        """Largest share of other texts that are taken for one of these, [0, 1]: of questions or passages."""
        kept = [1.0, 1.0]
        for one in self.trainings:
            kept[0] *= 1 - one.questions.false_positives
            kept[1] *= 1 - one.passages.false_positives
        return 1 - min(kept)

    def followed_by(self, training: TrainingTexts) -> TrainedTexts:
        """Return these with one more training; the oldest ones count as unhashed past :data:`MOST_PARTS`."""
        every = (*self.trainings, training)
        dropped = tuple(one.name for one in every[:-MOST_PARTS])
        return TrainedTexts(every[-MOST_PARTS:], (*self.unhashed, *dropped)[-MOST_PARTS:])


def trained_texts_of(folder: Path | None, name: str) -> TrainedTexts:
    """Return what a model to start from was trained on; if its folder does not say, its name as unhashed.

    Args:
        folder: of the model; None where it is not a folder.
        name: of the model, for people.

    Raises:
        FileError: the file is there and cannot be read.
    """
    found = None if folder is None else find_trained_texts(folder)
    return TrainedTexts((), (name[:_NAME],)) if found is None else found


def find_trained_texts(path: Path) -> TrainedTexts | None:
    """Return what a model's folder, or a file, says that it was trained on; None if it does not say.

    Raises:
        FileError: the file is there and cannot be read.
    """
    file = path / TRAINED_TEXTS if path.is_dir() else path
    return read_trained_texts(file) if file.is_file() else None


def read_trained_texts(path: Path) -> TrainedTexts:
    """Read a file that :func:`write_trained_texts` wrote.

    Raises:
        FileError: it cannot be read, or is no such file.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise FileError(path, None, f"has more than {MOST_BYTES:,} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise FileError(path, None, error.strerror or "cannot be read") from None
    line, _, bits = content.partition(b"\n")
    try:
        if len(line) > _HEADER_BYTES:
            raise ValueError("its first line is too long")
        header = _Header.model_validate(json.loads(line))
        if header.format != _FORMAT:
            raise ValueError(f"its format is {header.format}, not {_FORMAT}")
        sizes = [one for part in header.parts for one in (part.questions, part.passages)]
        if sum(one.size for one in sizes) != len(bits):
            raise ValueError("it is cut short, or has bytes too many")
        filters, begin = [], 0
        for one in sizes:
            part = np.frombuffer(bits, np.uint8, one.size, begin)
            filters.append(TextFilter(part, one.hashes, one.count))
            begin += one.size
    except (ValueError, RecursionError, ValidationError, InvalidInput) as error:
        why = "its first line is not as expected" if isinstance(error, ValidationError) else str(error)
        raise FileError(path, None, f"is no file of trained texts: {why}") from None
    return TrainedTexts(
        tuple(
            TrainingTexts(part.training, *filters[2 * at : 2 * at + 2])
            for at, part in enumerate(header.parts)
        ),
        tuple(header.unhashed),
    )


def write_trained_texts(texts: TrainedTexts, folder: Path) -> Path:
    """Write the file into a model's folder, at once, and return its path.

    Raises:
        OSError: it cannot be written.
    """

    def sizes(one: TextFilter) -> dict[str, Any]:
        return {"count": one.count, "hashes": one.hashes, "size": len(one.bits)}

    header = {
        "format": _FORMAT,
        "unhashed": list(texts.unhashed),
        "parts": [
            {"training": one.name, "questions": sizes(one.questions), "passages": sizes(one.passages)}
            for one in texts.trainings
        ],
    }
    filters: Sequence[TextFilter] = [
        one for part in texts.trainings for one in (part.questions, part.passages)
    ]
    content = b"".join([json.dumps(header).encode(), b"\n", *(one.bits.tobytes() for one in filters)])
    path = folder / TRAINED_TEXTS
    replace_file(path, lambda target: target.write_bytes(content))
    return path
