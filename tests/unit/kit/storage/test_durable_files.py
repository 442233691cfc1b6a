"""Files that are there whole, or not at all."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evenmesh_kit.storage import durable_files


@contextmanager
def small_files() -> Iterator[None]:
    """Let the system refuse files of more than 100 bytes: for a test's own lines, as pytest writes between."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_does_not_fit_is_not_left_in_part(tmp_path: Path) -> None:
    with small_files(), pytest.raises(OSError) as failed:
        durable_files.write(tmp_path / "file", bytes(101))
    assert failed.value.errno == errno.EFBIG
    assert not list(tmp_path.iterdir())
    with small_files():
        durable_files.write(tmp_path / "file", bytes(100))
    assert (tmp_path / "file").read_bytes() == bytes(100)


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"before")
    with pytest.raises(FileExistsError):
        durable_files.write(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    durable_files.replace(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"after"
