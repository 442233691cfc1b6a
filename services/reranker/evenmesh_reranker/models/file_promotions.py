"""Promotions in files beside the versions, for the processes of one machine."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime

from evenmesh_reranker.domain import Scope
from evenmesh_reranker.models.manifest import ManifestError
from evenmesh_reranker.models.ports import Pointers, Select
from evenmesh_reranker.models.store import ModelStore, Pointer


class FilePromotions:
    """A :class:`evenmesh_reranker.models.ports.Promotions`: the pointer files of a folder, under one lock.

    The lock is one of the operating system's, which ends with its process.

    Args:
        store: the folder.
    """

    def __init__(self, store: ModelStore) -> None:
        self._store = store

    async def pointers(self) -> tuple[Pointers, Sequence[ManifestError]]:
        """See the port."""
        return await asyncio.to_thread(self._store.pointers)

    async def pointer(self, scope: Scope) -> Pointer:
        """See the port."""
        return await asyncio.to_thread(self._store.pointer, scope)

    async def changed_at(self, scope: Scope) -> datetime | None:
        """See the port."""
        return await asyncio.to_thread(self._store.pointed_at, scope)

    async def stamp(self) -> Hashable:
        """See the port."""
        return await asyncio.to_thread(self._store.pointers_stamp)

    async def replace(self, scope: Scope, before: Pointer, after: Pointer) -> bool:
        """See the port. A file that cannot be understood is replaced."""
        return await asyncio.to_thread(self._replace, scope, before, after)

    @asynccontextmanager
    async def withdrawing(self, select: Select) -> AsyncIterator[Sequence[str]]:
        """See the port."""
        lock = self._locked()
        await asyncio.to_thread(lock.__enter__)
        try:
            pointers, problems = await self.pointers()
            yield [] if problems else select(pointers)
        finally:
            await asyncio.to_thread(lock.__exit__, None, None, None)

    def _replace(self, scope: Scope, before: Pointer, after: Pointer) -> bool:
        with self._locked():
            try:
                if self._store.pointer(scope) != before:
                    return False
            except ManifestError:
                pass
            self._store.set_pointer(scope, after)
            return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        file = os.open(self._store.lock_file(), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)
