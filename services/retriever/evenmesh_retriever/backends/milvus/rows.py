"""Translate passages to and from Milvus rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite, isnan
from typing import Any, Final

from evenmesh.wire.errors import InvalidField
from evenmesh_retriever.backends.milvus.expressions import ATTRIBUTES, LARGEST, NUMBERS
from evenmesh_retriever.domain import Passage

ID: Final = "id"
CONTENT: Final = "content"
"""Title and text as they are indexed; both can be had from it and ``TITLE_LENGTH``."""
TITLE_LENGTH: Final = "title_length"
DENSE: Final = "dense"
IMPACTS: Final = "impacts"
LEXICAL: Final = "lexical"

MAX_BYTES: Final = 65_535
"""Most that a text, or the attributes of a passage as JSON, may have in Milvus."""
FIELDS: Final = (ID, CONTENT, TITLE_LENGTH, ATTRIBUTES)
"""What a passage is made from."""


def check(field: str, passage: Passage) -> None:
    """Refuse what does not fit; a little of what fits in a message does not.

    Raises:
        InvalidField: the title and the text, or the attributes, are larger than Milvus takes.
    """
    size = len(passage.content.encode())
    if size > MAX_BYTES:
        raise InvalidField(
            f"{field}.text", f"must be at most {MAX_BYTES} bytes with the title in Milvus, has {size}"
        )
    size = len(json.dumps(dict(passage.attributes), ensure_ascii=False).encode())
    if size > MAX_BYTES:
        raise InvalidField(
            f"{field}.attributes", f"must be at most {MAX_BYTES} bytes as JSON in Milvus, have {size}"
        )


def row_of(passage: Passage) -> dict[str, Any]:
    """Return a passage as a row without vectors."""
    return {
        ID: passage.id,
        CONTENT: passage.content,
        TITLE_LENGTH: len(passage.title),
        ATTRIBUTES: dict(passage.attributes),
        NUMBERS: _numbers(passage.attributes),
    }


def passage_of(row: Mapping[str, Any]) -> Passage:
    """Return the passage of a row."""
    content, length = row[CONTENT], row[TITLE_LENGTH]
    # Between a title and a text there is a blank; where one of them is empty there is none.
    title, text = content[:length], content[length + 1 :] if length else content
    return Passage(row[ID], title, text, dict(row[ATTRIBUTES]))


def bytes_of(passage: Passage) -> int:
    """Size of a passage: its id, title, text and attributes. Bytes."""
    texts = [passage.id, passage.title, passage.text, *passage.attributes, *passage.attributes.values()]
    return sum(len(text.encode()) for text in texts)


def _numbers(attributes: Mapping[str, str]) -> dict[str, float]:
    """Return the numeric attributes, read as in :meth:`evenmesh_retriever.domain.Condition.met_by`."""
    found: dict[str, float] = {}
    for name, value in attributes.items():
        try:
            number = float(value)
        except ValueError:
            continue
        if not isnan(number):
            found[name] = number if isfinite(number) else LARGEST if number > 0 else -LARGEST
    return found
