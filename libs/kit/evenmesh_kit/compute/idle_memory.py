"""Give memory that a service does not need while it is idle back to the system.

Two kinds: pages of files that are mapped, which come back from the system's cache of files when they are read
again, and memory that was freed and that the C library keeps for later. Elsewhere than on Linux nothing is
given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMAPS: Final = Path("/proc/self/smaps")

_mapped: Final[WeakValueDictionary[int, NDArray[Any]]] = WeakValueDictionary()
"""The arrays whose pages are given back, by their ids."""


def register(array: NDArray[Any]) -> None:
    """Have the pages of an array given back until it is gone.

    Only those of a mapped file are, and only while nobody wrote to them: they are read from the file again.
    """
    _mapped[id(array)] = array


def give_back() -> None:
    """Give back what can be; this takes milliseconds, and other threads may compute meanwhile."""
    arrays = [one for one in list(_mapped.values()) if one.nbytes]
    if arrays:
        with contextlib.suppress(OSError):  # no Linux
            files = list(_clean_files())
            for array in arrays:
                _release(array, files)
    # glibc has it, other C libraries do not.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _release(array: NDArray[Any], files: Iterable[range]) -> None:
    begin = array.__array_interface__["data"][0]
    first, last = -(-begin // mmap.PAGESIZE), (begin + array.nbytes) // mmap.PAGESIZE
    # One file may be several mappings: a library that advises the system on a part of one splits it.
    for file in files:
        start = max(first * mmap.PAGESIZE, file.start)
        size = min(last * mmap.PAGESIZE, file.stop) - start
        if size > 0:
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _clean_files() -> Iterator[range]:
    """Yield the addresses at which files are mapped that nobody wrote to."""
    addresses, is_file = range(0), False
    for line in _SMAPS.read_text(errors="replace").splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            begin, _, end = name.partition("-")
            fields = rest.split(maxsplit=4)
            addresses = range(int(begin, 16), int(end, 16))
            is_file = len(fields) == 5 and fields[4].startswith("/")
        elif name == "Anonymous:" and is_file and rest.split()[0] == "0":
            yield addresses
