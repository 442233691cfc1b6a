"""What tests of several faults share."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import Postgres, running


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A server that can be killed: commits wait for the disk."""
    with running(durable=True) as server:
        yield server
