"""Prompts whose rows are encoded one by one, and which rows to encode next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from evenmesh_generator.runtime.networks.encodings import EncodingStore
from evenmesh_generator.runtime.networks.protocol import Prompt

Encoded = TypeVar("Encoded")


class EncoderPrefill(Generic[Encoded]):
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
        """Return whether every row is encoded."""
        return len(self._found) == len(self._sizes)

    @property
    def missing(self) -> list[bytes]:
        """Return rows that are not there yet, each once."""
        return [key for key in self._sizes if key not in self._found]

    def row(self, key: bytes) -> int:
        """Return where in the prompt that row comes first."""
        return self._keys.index(key)

    def found(self, key: bytes, encoded: Encoded, *, reused: bool = False) -> None:
        """Record a row's encoding."""
        self._found[key] = encoded
        times = sum(1 for one in self._keys if one == key)
        # A row that comes twice is computed once.
        self.reused += self._sizes[key] * (times if reused else times - 1)
        self.computed += 0 if reused else self._sizes[key]

    def parts(self) -> list[Encoded]:
        """Return the encodings of all rows in order."""
        return [self._found[key] for key in self._keys]


def next_rows(
    prefills: Sequence[EncoderPrefill[Encoded]], store: EncodingStore[Encoded], most_tokens: int
) -> dict[bytes, tuple[tuple[int, ...], list[EncoderPrefill[Encoded]]]]:
    """Return rows to encode now, first come first served, and who waits for each; what is kept is handed out.

    A reading that shares a row with one before it waits for the same row, and counts as reusing it.
    """
    wanted: dict[bytes, tuple[tuple[int, ...], list[EncoderPrefill[Encoded]]]] = {}
    tokens = 0
    for prefill in prefills:
        for key in prefill.missing:
            if key in wanted:
                wanted[key][1].append(prefill)
                continue
            kept = store.get(key, prefill.prompt.tenant, count=key not in prefill.asked)
            prefill.asked.add(key)
            if kept is not None:
                prefill.found(key, kept, reused=True)
                continue
            row = prefill.prompt.rows[prefill.row(key)]
            if wanted and tokens + len(row) > most_tokens:
                return wanted
            tokens += len(row)
            wanted[key] = (row, [prefill])
    return wanted


def hand_out(key: bytes, encoded: Encoded, prefills: Sequence[EncoderPrefill[Encoded]]) -> None:
    """Give a row to all prefills that wait for it; the first had it computed."""
    for at, prefill in enumerate(prefills):
        prefill.found(key, encoded, reused=at > 0)
