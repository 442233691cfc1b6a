"""A process that keeps a collection until it is killed at a fault point; says what was acknowledged.

Run as ``living.py``, it forks a process for each line of its standard input, a JSON object: ``root``, the folder;
``environment``, which names the fault point in EVENMESH_RETRIEVER_FAULT; ``output`` and ``errors``, files that
the process writes. It answers each with the status that ``waitpid`` gave. Each line of the output is what the
collection holds by then, as JSON: passages by id, as the last acknowledgement left them. What a write that is
under way would make of it comes before, under ``next``.
"""

import asyncio
import json
import os
import sys
import traceback
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


def fork(root: str, environment: dict[str, str], output: str, errors: str) -> int:
    """Live in a process of its own; return the status that it ended with, of ``waitpid``."""
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    status = 1
    try:
        for path, number in ((output, 1), (errors, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.environ.update(environment)
        asyncio.run(live(Path(root)))
        sys.stdout.flush()
        status = 0
    except Exception:  # noqa: BLE001 - the test reads it
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(f"{fork(**json.loads(line))}\n")
        sys.stdout.flush()
