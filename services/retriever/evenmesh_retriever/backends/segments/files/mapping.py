"""Map files into memory without holding their descriptors.

Python's ``mmap`` keeps a copy of the descriptor for as long as the mapping lives (until 3.13, which can do
without), and so does NumPy. A process with thousands of segments would run out of descriptors.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# The kernel bounds the number of mappings, too, and there may be thousands of small files.
_MAPPED_FROM: Final = 2**18
_FAILED: Final = ctypes.c_void_p(-1).value
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mapped(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of a file, read-only; a small file is read, a larger one when its bytes are used.

    Raises:
        OSError: the file cannot be read or mapped.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _MAPPED_FROM:
            return np.frombuffer(file.read(), dtype=np.uint8)
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    if address in (None, _FAILED):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(path))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _libc.munmap, address, size)
    content: NDArray[np.uint8] = np.ctypeslib.as_array(memory)
    content.flags.writeable = False
    return content


def load(path: Path) -> NDArray[Any]:
    """Return the array of a NumPy file, mapped as by :func:`mapped`.

    Raises:
        OSError: the file cannot be read or mapped.
        ValueError: it holds no array of numbers, or is shorter than it.
    """
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, in_columns, dtype = read(file)
        offset = file.tell()
    if in_columns or dtype.hasobject:
        raise ValueError(f"{path} is not an array of numbers in rows")
    return np.frombuffer(mapped(path), dtype=dtype, count=int(np.prod(shape)), offset=offset).reshape(shape)
