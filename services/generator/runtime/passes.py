"""Prompts whose rows are encoded one by one, and which rows to encode next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from services.generator.runtime.encodings import EncodingStore
from services.generator.runtime.networks import Prompt

Encoded = TypeVar("Encoded")


class EncodedReading(Generic[Encoded]):
    """A prompt of rows, each encoded by itself.

    Args:
        keys: content of every row.
    """

    def __init__(self, prompt: Prompt, keys: Sequence[bytes]) -> None:
        self.prompt = prompt
        self.computed = 0
        self.reused = 0
        self.asked: set[bytes] = set()
        """Rows looked for among what is kept: to count each once."""
        self._keys = keys
        self._found: dict[bytes, Encoded] = {}
        self._sizes = dict(zip(keys, map(len, prompt.rows), strict=True))

    @property
    def done(self) -> bool:
        """Whether every row is encoded."""
        return len(self._found) == len(self._sizes)

    @property
    def missing(self) -> list[bytes]:
        """Rows that are not there yet, each once."""
        return [key for key in self._sizes if key not in self._found]

    def row(self, key: bytes) -> int:
        """Where in the prompt that row comes first."""
        return self._keys.index(key)

    def found(self, key: bytes, encoded: Encoded, *, reused: bool = False) -> None:
        """A row's encoding."""
        self._found[key] = encoded
        times = sum(1 for one in self._keys if one == key)
        # A row that comes twice is computed once.
        self.reused += self._sizes[key] * (times if reused else times - 1)
        self.computed += 0 if reused else self._sizes[key]

    def parts(self) -> list[Encoded]:
        """The encodings of all rows in order."""
        return [self._found[key] for key in self._keys]


def next_rows(
    readings: Sequence[EncodedReading[Encoded]], store: EncodingStore[Encoded], most_tokens: int
) -> dict[bytes, tuple[tuple[int, ...], list[EncodedReading[Encoded]]]]:
    """Rows to encode now, first come first served, and who waits for each; what is kept is handed out.

    A reading that shares a row with one before it waits for the same row, and counts as reusing it.
    """
    wanted: dict[bytes, tuple[tuple[int, ...], list[EncodedReading[Encoded]]]] = {}
    tokens = 0
    for reading in readings:
        for key in reading.missing:
            if key in wanted:
                wanted[key][1].append(reading)
                continue
            kept = store.get(key, count=key not in reading.asked)
            reading.asked.add(key)
            if kept is not None:
                reading.found(key, kept, reused=True)
                continue
            row = reading.prompt.rows[reading.row(key)]
            if wanted and tokens + len(row) > most_tokens:
                return wanted
            tokens += len(row)
            wanted[key] = (row, [reading])
    return wanted


def hand_out(key: bytes, encoded: Encoded, readings: Sequence[EncodedReading[Encoded]]) -> None:
    """Gives a row to all who wait for it; the first had it computed."""
    for at, reading in enumerate(readings):
        reading.found(key, encoded, reused=at > 0)
