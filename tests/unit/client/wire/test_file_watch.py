"""Files that are read again, and what stays in force when they cannot be."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from evenmesh.wire.file_watch import WatchedFiles
from tests.support.clock import Clock


def numbers(*paths: Path) -> list[int]:
    """The numbers that files hold."""
    return [int(path.read_text()) for path in paths]


def written(path: Path, text: str) -> Path:
    """Replaces a file, as whoever does it well does it: there is another inode."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)
    return path


def test_files_say_something_together(tmp_path: Path) -> None:
    one, two = written(tmp_path / "one", "1"), written(tmp_path / "two", "2")
    files = WatchedFiles((one, two), lambda: numbers(one, two), ValueError, every_s=0)
    assert files.content() == [1, 2]
    written(two, "3")
    before = files.content()
    assert before == [1, 3]
    written(one, "1")
    assert files.content() is before, "others would act on a change"


def test_they_are_looked_at_now_and_then(tmp_path: Path) -> None:
    clock = Clock()
    path = written(tmp_path / "one", "1")
    files = WatchedFiles((path,), lambda: numbers(path), ValueError, clock=clock)
    written(path, "2")
    assert files.content() == [1]
    clock.now += 1
    assert files.content() == [2]


def test_what_was_before_stays_and_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "one", "1")
    files = WatchedFiles((path,), lambda: numbers(path), ValueError, every_s=0)
    assert (files.stale(), files.failures) == (False, 0)
    with caplog.at_level(logging.WARNING):
        written(path, "two")
        for _ in range(3):
            assert files.stale()
            assert files.content() == [1]
    assert files.failures == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} changed and cannot be used; earlier content stays in use: "
        "invalid literal for int() with base 10: 'two'"
    ]
    written(path, "three")
    assert (files.stale(), files.failures) == (True, 2)
    written(path, "2")
    assert (files.stale(), files.failures, files.content()) == (False, 2, [2])


def test_what_is_mended_without_a_change_of_the_file_is_in_force_again(tmp_path: Path) -> None:
    class CannotReadError(Exception):
        pass

    path = written(tmp_path / "one", "1")
    allowed = True

    def read() -> list[int]:
        if not allowed:
            raise CannotReadError("Permission denied")
        return numbers(path)

    files = WatchedFiles((path,), read, CannotReadError, every_s=0)
    allowed = False
    written(path, "2")
    assert files.stale()
    allowed = True
    assert not files.stale()
    assert files.content() == [2]


def test_a_file_that_is_put_back_is_in_force(tmp_path: Path) -> None:
    path = written(tmp_path / "one", "1")
    files = WatchedFiles((path,), lambda: numbers(path), OSError, every_s=0)
    path.rename(tmp_path / "aside")
    assert files.stale()
    (tmp_path / "aside").rename(path)
    assert not files.stale()
