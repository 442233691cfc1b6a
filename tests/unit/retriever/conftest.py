"""What the retriever's unit tests share."""

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from evenmesh_retriever.analyzer import analyzer
from evenmesh_retriever.backends.segments.building.writer import SegmentIndexing
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import Options, SegmentStore
from evenmesh_retriever.ports import Analyzer, Encoder

OpenStore = Callable[..., Awaitable[SegmentStore]]


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Opens the store in the test's folder; whatever is still open at the end is closed."""
    opened: list[SegmentStore] = []

    async def open_one(
        encoder: Encoder | None = None,
        prepare: Callable[[SegmentSnapshot], None] = lambda _: None,
        embed_at_once: int = 5_000,
        analyzer: Callable[[str], Analyzer] = cache(analyzer),  # noqa: B008
        **options: Any,
    ) -> SegmentStore:
        recipe = SegmentIndexing(analyzer, encoder, embed_at_once)
        store = SegmentStore(tmp_path / "collections", recipe, prepare, Options(**options))
        await store.start()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.stop()
