"""Batch rows of similar lengths, so that little is padded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

CPU_ROWS: Final = 16
"""Most rows of a batch on a CPU, which a few rows keep busy: small batches of sorted lengths pad little, 8 %
at 16 rows of passage-like lengths."""


def rows_at_once(device: str) -> int | None:
    """Return the most rows of a batch on a device, such as ``cpu`` or ``cuda:0``.

    None on a GPU, which many rows keep busy: there the tokens or bytes of a batch are its only bound.
    """
    return None if device.startswith("cuda") else CPU_ROWS


def by_length(lengths: Sequence[int], most: int, *, size: int | None = CPU_ROWS) -> list[list[int]]:
    """Return indices into ``lengths``, longest first, in batches of ``most`` tokens, which count padding.

    A row longer than ``most`` is a separate batch.

    Args:
        lengths: tokens of each row.
        most: most tokens of a batch.
        size: most rows of a batch; None: any number.
    """
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        full = bool(batches) and size is not None and len(batches[-1]) >= size
        if not batches or full or longest * (len(batches[-1]) + 1) > most:
            batches.append([])
            longest = lengths[index]
        batches[-1].append(index)
    return batches


def alike(sizes: Sequence[int], threads: int, most: int) -> list[list[int]]:
    """Return indices into ``sizes``, largest first, in batches of rows of one size.

    The batches become smaller towards the end, so that threads that take them end at nearly the same time.

    Args:
        sizes: tokens that each row is computed with.
        threads: take the batches, [1, inf).
        most: most rows of a batch, [1, inf).
    """
    left = sorted(range(len(sizes)), key=lambda at: -sizes[at])
    batches: list[list[int]] = []
    while left:
        count = min(most, -(-len(left) // threads))
        batch = [at for at in left[:count] if sizes[at] == sizes[left[0]]]
        batches.append(batch)
        left = left[len(batch) :]
    return batches
