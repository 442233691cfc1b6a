"""What the retriever's unit tests share."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import settings

from services.retriever.analyzer import UnicodeWordAnalyzer
from services.retriever.backends.local.build import Recipe
from services.retriever.backends.local.snapshot import LocalSnapshot
from services.retriever.backends.local.store import LocalStore
from services.retriever.ports import Encoder

# How long an example takes says something about the machine, nothing about the code.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

OpenStore = Callable[..., Awaitable[LocalStore]]


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Opens the store in the test's folder; whatever is still open at the end is closed."""
    opened: list[LocalStore] = []

    async def open_one(
        encoder: Encoder | None = None, prepare: Callable[[LocalSnapshot], None] = lambda _: None
    ) -> LocalStore:
        store = LocalStore(tmp_path / "collections", Recipe(UnicodeWordAnalyzer(), encoder), prepare)
        await store.start()
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.stop()
