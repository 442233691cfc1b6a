"""Give memory that a service does not need while it is idle back to the system.

Two kinds: pages of files that are mapped, which come back from the system's cache of files when they are read
again, and memory that was freed and that the C library keeps for later. Files are those of registered arrays
alone: what else is mapped may be another thing by the time that it is given back. Elsewhere than on Linux
nothing is given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
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
    arrays = [one for one in list(_mapped.values()) if one.nbytes]  # each stays mapped while it is held here
    if arrays:
        with contextlib.suppress(OSError):  # no Linux
            for file in list(_clean_files()):
                for array in arrays:
                    _advise(_shared(file, array))
    give_back_freed()


def give_back_freed() -> None:
    """Give back what was freed; this takes milliseconds.

    glibc keeps it by thread, and a training, whose sizes vary from step to step, leaves gigabytes there.
    """
    # glibc has it, other C libraries do not.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _shared(file: range, array: NDArray[Any]) -> range:
    """Return the whole pages of an array that are in a part of a file: a library that advises the system on
    a tensor makes several parts of a file.
    """
    begin = array.__array_interface__["data"][0]
    first, last = -(-begin // mmap.PAGESIZE), (begin + array.nbytes) // mmap.PAGESIZE
    return range(max(first * mmap.PAGESIZE, file.start), min(last * mmap.PAGESIZE, file.stop))


def _advise(pages: range) -> None:
    if pages:
        begin, size = ctypes.c_void_p(pages.start), ctypes.c_size_t(len(pages))
        ctypes.CDLL(None).madvise(begin, size, mmap.MADV_DONTNEED)


def _clean_files() -> Iterator[range]:
    """Yield the addresses at which files are mapped to which nobody wrote."""
    file: range | None = None
    for line in _SMAPS.read_text(errors="replace").splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            begin, _, end = name.partition("-")
            file = range(int(begin, 16), int(end, 16)) if "/" in rest else None
        elif name == "Anonymous:" and file is not None and rest.split()[0] == "0":
            yield file
