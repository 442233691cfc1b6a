"""Kept conversions: whole or made again, by several processes at a time, and never more than a few."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from evenmesh_kit.compute import conversions
from evenmesh_kit.compute.conversions import Conversions


class Converter:
    """Writes two files and counts how often."""

    def __init__(self, content: bytes = b"content") -> None:
        self.content = content
        self.count = 0

    def __call__(self, folder: Path) -> None:
        self.count += 1
        (folder / "model").write_bytes(self.content)
        (folder / "weights").write_bytes(self.content * 100)


def test_a_conversion_is_made_once(tmp_path: Path) -> None:
    make = Converter()
    first = Conversions(tmp_path / "kept").find("a", make)
    assert (first / "model").read_bytes() == b"content"
    assert Conversions(tmp_path / "kept").find("a", make) == first
    assert make.count == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "weights").write_bytes(b"content" * 99 + b"Content"),
        lambda folder: (folder / "weights").write_bytes(b""),
        lambda folder: (folder / "model").unlink(),
        lambda folder: (folder / "digests.json").unlink(),
        lambda folder: (folder / "digests.json").write_text("{}"),
        lambda folder: (folder / "digests.json").write_text("[1]"),
        lambda folder: (folder / "digests.json").write_text('{"model": 1}'),
    ],
)
def test_a_damaged_one_is_made_again(tmp_path: Path, damage: object) -> None:
    kept, make = Conversions(tmp_path), Converter()
    damage(kept.find("a", make))  # type: ignore[operator]
    found = kept.find("a", make)
    assert make.count == 2
    assert (found / "weights").read_bytes() == b"content" * 100
    kept.find("a", make)
    assert make.count == 2


def test_services_of_a_user_share_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "user_cache_path", lambda name: tmp_path / "cache" / name)
    make = Converter()
    found = Conversions.of_user(tmp_path / "a").find("key", make)
    assert Conversions.of_user(tmp_path / "b").find("key", make) == found
    assert make.count == 1
    assert (tmp_path / "cache" / "evenmesh" / "openvino").stat().st_mode & 0o777 == 0o700


def test_without_a_cache_they_are_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setattr(conversions, "user_cache_path", lambda name: tmp_path / "cache" / name)
    found = Conversions.of_user(tmp_path / "home").find("key", Converter())
    assert found == tmp_path / "home" / "openvino" / "key"


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "model").write_bytes(b"half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Conversions(tmp_path).find("a", fail)
    assert not list(tmp_path.iterdir())
    assert Conversions(tmp_path).find("a", Converter()).is_dir()


def test_the_ones_used_last_are_kept(tmp_path: Path) -> None:
    conversions = Conversions(tmp_path, keep=2)
    for age, key in ((30, "a"), (20, "b")):
        os.utime(conversions.find(key, Converter()), (time.time() - age,) * 2)
    conversions.find("a", Converter())
    conversions.find("c", Converter())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]


def test_what_a_killed_process_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    old, new = tmp_path / ".old", tmp_path / ".new"
    for path in (old, new):
        path.mkdir()
    os.utime(old, (time.time() - 3601,) * 2)
    Conversions(tmp_path).find("a", Converter())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".new", "a"]


def test_threads_that_write_the_same_find_one(tmp_path: Path) -> None:
    conversions, make = Conversions(tmp_path), Converter()
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: conversions.find("a", make), range(32)))
    assert len(found) == 1
    assert (found.pop() / "weights").read_bytes() == b"content" * 100


def test_processes_that_write_the_same_find_it_whole(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from evenmesh_kit.compute.conversions import Conversions\n"
        "make = lambda folder: (folder / 'model').write_bytes(b'x' * 2**20) and None\n"
        "for _ in range(20):\n"
        "    found = Conversions(pathlib.Path(sys.argv[1])).find('a', make)\n"
        "    (found / 'model').read_bytes() == b'x' * 2**20 or sys.exit('damaged')\n"
    )
    running = [subprocess.Popen([sys.executable, "-c", program, tmp_path]) for _ in range(3)]
    assert [one.wait(60) for one in running] == [0, 0, 0]


def test_a_disk_that_is_read_only_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Conversions(tmp_path).find("a", Converter())

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert Conversions(tmp_path).find("a", Converter()) == folder
    with pytest.raises(OSError, match="read only"):
        Conversions(tmp_path).find("b", Converter())
