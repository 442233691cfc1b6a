"""What databases raise, as what the ports say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from meshkit.errors import Unavailable
from meshkit.storage import said, trouble_of


@contextmanager
def unavailable() -> Iterator[None]:
    """Turns what a database can raise for reasons outside this program into Unavailable."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        trouble = trouble_of(error)
        raise Unavailable(f"STORE_{trouble}", said(trouble, "the database of feedback")) from error
