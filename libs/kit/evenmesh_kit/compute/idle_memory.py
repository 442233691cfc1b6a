"""Give memory that a service does not need while it is idle back to the system.

Two kinds: pages of files that are mapped, which come back from the system's cache of files when they are read
again, and memory that was freed and that the C library keeps for later. Files are the code of libraries, of
which a start runs far more than an answer does, and those of registered arrays. Elsewhere than on Linux
nothing is given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMAPS: Final = Path("/proc/self/smaps")
_LIBRARY: Final = re.compile(r"\.so(\.[\w.]+)?$")

_mapped: Final[WeakValueDictionary[int, NDArray[Any]]] = WeakValueDictionary()
"""The arrays whose pages are given back, by their ids."""


def register(array: NDArray[Any]) -> None:
    """Have the pages of an array given back until it is gone.

    Only those of a mapped file are, and only while nobody wrote to them: they are read from the file again.
    """
    _mapped[id(array)] = array


def give_back() -> None:
    """Give back what can be; this takes milliseconds, and other threads may compute meanwhile."""
    with contextlib.suppress(OSError):  # no Linux
        for file in list(_clean_files()):
            if file.is_code:
                _advise(file.addresses)
                continue
            for array in list(_mapped.values()):
                _advise(_shared(file.addresses, array))
    # glibc has it, other C libraries do not.
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(frozen=True)
class _File:
    """A mapped part of a file to which nobody wrote.

    Attributes:
        addresses: where it is.
        is_code: whether it is of a library, which nobody can write to and which stays as long as the process.
    """

    addresses: range
    is_code: bool


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


def _clean_files() -> Iterator[_File]:
    found: _File | None = None
    for line in _SMAPS.read_text(errors="replace").splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            begin, _, end = name.partition("-")
            rights, *_, path = rest.split(maxsplit=4) if rest.count("/") else ("", "")
            is_code = "w" not in rights and _LIBRARY.search(path) is not None
            found = _File(range(int(begin, 16), int(end, 16)), is_code) if path.startswith("/") else None
        elif name == "Anonymous:" and found is not None and rest.split()[0] == "0":
            yield found
