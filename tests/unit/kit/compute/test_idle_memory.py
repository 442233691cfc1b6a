"""Memory that an idle service gives back: pages of mapped files, and what was freed; never what was written."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evenmesh_kit.compute import idle_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is given back on Linux")

BYTES = 4 * 2**20
FREED = """
import ctypes, platform, re
from evenmesh_kit.compute import idle_memory

def anonymous():
    return int(re.search(r"^Anonymous: +([0-9]+)", open("/proc/self/smaps_rollup").read(), re.M)[1])

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
blocks = [ctypes.c_void_p(library.malloc(1000)) for _ in range(30_000)]
for block in blocks[:-1]:  # the last one keeps the heap as long as it is
    ctypes.memset(block, 1, 1000)
    library.free(block)
before = anonymous()
idle_memory.give_back()
print(before - anonymous() if platform.libc_ver()[0] == "glibc" else 30_000)
"""


def resident(file: Path) -> int:
    """Bytes of a file that this process holds."""
    found = re.findall(
        rf"{re.escape(str(file))}\n(?:.+\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text()
    )
    return 1024 * sum(map(int, found))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of four mebibytes."""
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(BYTES, dtype=np.uint8).tobytes())
    return path


@pytest.mark.parametrize("mode", ["r", "c"])
def test_pages_of_a_file_are_given_back_and_read_again(file: Path, mode: str) -> None:
    mapped = np.memmap(file, np.uint8, mode=mode)  # type: ignore[call-overload]
    wanted = int(mapped.sum())
    assert resident(file) == BYTES
    idle_memory.give_back()
    assert resident(file) == BYTES, "nobody registered it"
    idle_memory.register(mapped)
    idle_memory.give_back()
    assert resident(file) == 0
    assert int(mapped.sum()) == wanted


def test_a_mapping_that_was_split_is_given_back_whole(file: Path) -> None:
    """OpenVINO advises the system on each tensor in the file."""
    mapped = np.memmap(file, np.uint8, mode="c")
    idle_memory.register(mapped)
    middle = ctypes.c_void_p(mapped.ctypes.data + 2**20)
    random_access = 1
    assert ctypes.CDLL(None).madvise(middle, ctypes.c_size_t(2**20), random_access) == 0
    mapped.sum()
    idle_memory.give_back()
    assert resident(file) == 0


def test_what_was_written_stays(file: Path) -> None:
    mapped = np.memmap(file, np.uint8, mode="c")
    idle_memory.register(mapped)
    mapped[5_000] = 77
    idle_memory.give_back()
    assert mapped[5_000] == 77


def test_a_part_of_a_file_is_given_back(file: Path) -> None:
    mapped = np.memmap(file, np.uint8, mode="r")
    part = mapped[10_000:3_000_000]
    idle_memory.register(part)
    wanted = int(mapped.sum())
    idle_memory.give_back()
    assert resident(file) < BYTES  # the system may keep the neighbours in memory or not
    assert int(mapped.sum()) == wanted


def test_arrays_of_no_file_and_arrays_that_are_gone_stay_out_of_it(file: Path) -> None:
    ours = np.ones(BYTES, np.uint8)
    empty = np.empty(0)
    gone = np.memmap(file, np.uint8, mode="r")
    for one in (ours, empty, gone):
        idle_memory.register(one)
    del gone, one
    gc.collect()
    idle_memory.give_back()
    assert int(ours.sum()) == BYTES


def test_what_was_freed_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 20_000
