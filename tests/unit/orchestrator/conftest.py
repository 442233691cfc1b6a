"""A mesh of fakes for the tests of the orchestrator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evenmesh_kit.compute.tenant_pool import TenantPool
from tests.unit.orchestrator.fakes import FakeGenerator, FakeObserver, FakeReranker, FakeRetriever, Mesh


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """A mesh in which everything works."""
    pool = TenantPool(1, "test")
    yield Mesh(FakeRetriever(), FakeReranker(), FakeGenerator(), FakeObserver(), pool)
    pool.close()
