"""Addresses of data sets: ``ir_datasets:beir/scifact/test`` and ``hf:org/name?config=corpus&split=train``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from evenmesh_documents.origins.remote import scheme_of

IR_DATASETS: Final = "ir_datasets"
HUGGING_FACE: Final = "hf"

_OPTIONS: Final = ("config", "split", "revision")
_COLUMNS: Final = ("id", "title", "text", "question", "answers", "query", "passage", "grade")


@dataclass(frozen=True, slots=True)
class DataSetAddress:
    """The name of a data set, and which part of it is meant.

    Attributes:
        kind: :data:`IR_DATASETS` or :data:`HUGGING_FACE`.
        name: as its library knows it; of Hugging Face also a folder of this machine.
        options: ``config``, ``split`` and ``revision`` of Hugging Face.
        columns: the column of each part of a record, where it is named otherwise.
    """

    kind: str
    name: str
    options: Mapping[str, str]
    columns: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> "DataSetAddress":
        """Return the address that a text says.

        Raises:
            ValueError: it names no data set, or has an option that there is not.
        """
        kind, _, rest = text.partition(":")
        name, asks, query = rest.partition("?")
        if not is_data_set(text) or not name:
            raise ValueError(f"must be {IR_DATASETS}:NAME or {HUGGING_FACE}:NAME, is {text!r}")
        if asks and kind == IR_DATASETS:
            raise ValueError("a data set of ir_datasets takes no options")
        try:
            given = dict(parse_qsl(query, keep_blank_values=False, strict_parsing=bool(query)))
        except ValueError as exc:
            raise ValueError(f"options must be NAME=VALUE, with & between them, not {query!r}") from exc
        if unknown := sorted(given.keys() - {*_OPTIONS, *_COLUMNS}):
            raise ValueError(f"has no option {unknown[0]!r}; there are {', '.join((*_OPTIONS, *_COLUMNS))}")
        return cls(
            kind,
            name,
            {key: value for key, value in given.items() if key in _OPTIONS},
            {key: value for key, value in given.items() if key in _COLUMNS},
        )


def is_data_set(path: str) -> bool:
    """Return whether a path is the address of a data set; ``hf://`` is a file system's."""
    return path.startswith((f"{IR_DATASETS}:", f"{HUGGING_FACE}:")) and not scheme_of(path)
