"""What databases raise, as what the ports say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from meshkit.storage import StoreFailure


@contextmanager
def unavailable() -> Iterator[None]:
    """Turns what a database can raise for reasons outside this program into StoreFailure."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        raise StoreFailure(error, "the database of feedback") from error
