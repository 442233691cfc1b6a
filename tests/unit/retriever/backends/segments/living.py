"""A process that keeps a collection until it is killed at a fault point; says what was acknowledged.

Run as ``living.py FOLDER``, with the fault point in EVENMESH_RETRIEVER_FAULT. Each line of its output is what
the collection holds by then, as JSON: passages by id, as the last acknowledgement left them. What a write that
is under way would make of it comes before, under ``next``.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import Passage, VectorArray


class CountingEncoder:
    """Vectors without a model: how often some letters are in a text, of length 1."""

    name = fingerprint = "letters"
    dimension = 4
    device, precision = "cpu", "fp32"
    max_tokens = 256

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the characters."""
        return sum(map(len, texts))

    def encode_query(self, text: str) -> VectorArray:
        counts = np.array([1 + text.count(letter) for letter in "aeio"], dtype=np.float32)
        return counts / np.linalg.norm(counts)

    def encode_passages(self, texts: list[str], progress: Callable[[int], None]) -> VectorArray:
        progress(len(texts))
        return np.array([self.encode_query(text) for text in texts]).reshape(-1, self.dimension)


def recipe() -> SegmentIndexing:
    return SegmentIndexing(cache(analyzer), CountingEncoder(), embed_at_once=3)


async def live(root: Path) -> None:
    store = SegmentStore(root, recipe(), lambda _: None)
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    held: dict[str, str] = {}

    def tell(**state: dict[str, str]) -> None:
        sys.stdout.write(json.dumps(state) + "\n")
        sys.stdout.flush()

    async def write(work: Awaitable[object], change: dict[str, str | None]) -> None:
        after = {one: text for one, text in {**held, **change}.items() if text is not None}
        tell(next=after)
        await work
        held.clear()
        held.update(after)
        tell(held=after)

    for turn in range(8):
        # Sometimes few enough to be embedded at once, sometimes not.
        texts = {f"p{(turn * 3 + row) % 17:02}": f"text {turn} {row}" for row in range(2 + turn % 4)}
        batch = [Passage(one, "", text) for one, text in texts.items()]
        await write(collections.ingest("c", batch, create=True), dict(texts))
        gone = sorted(held)[turn % 3 :: 5]
        await write(collections.delete_passages("c", gone), dict.fromkeys(gone))
        if turn % 2:
            await store.settled()
    await store.settled()
    await store.stop()


if __name__ == "__main__":
    asyncio.run(live(Path(sys.argv[1])))
