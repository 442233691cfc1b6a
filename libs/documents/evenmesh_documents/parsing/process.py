"""Read files that arrive on standard input: ``python -m evenmesh_documents.parsing.process``.

The process has no network where the platform takes it away cheaply (Linux with user namespaces), writes no
file, and has bounds of memory and processor time. It is started by
:class:`evenmesh_documents.parsing.parsers.Parsers`.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import resource
import sys
from dataclasses import replace
from typing import Final

from evenmesh_documents.document import Document, UnreadableError
from evenmesh_documents.limits import Limits
from evenmesh_documents.parsing.wire import StreamError, packed, receive, send
from evenmesh_documents.readers import read
from evenmesh_documents.source import Ocr, Source

_NEW_USER: Final = 0x10000000
_NEW_NETWORK: Final = 0x40000000
_MOST_HEAD: Final = 65_536
_KEPT_SHARE: Final = 4
"""A process that keeps more than this part of its memory between two files reads no other."""
_PAGE_BYTES: Final = resource.getpagesize()


def main() -> None:
    """Read files until there is no more input."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no message
    logging.disable()
    limits = Limits(**json.loads(sys.argv[1]))
    try:
        ocr = _loaded(sys.argv[2]) if len(sys.argv) > 2 else None
    except Exception as exc:  # noqa: BLE001 - whatever the module raises, no file can be read with it
        send(outgoing, f"{sys.argv[2]} cannot be used for OCR: {type(exc).__name__}: {exc}".encode())
        return
    if ocr is None:
        # One library would import NumPy, for its types alone; that takes as long as importing several others.
        sys.modules["numpy"] = None  # type: ignore[assignment]
    _without_network()
    _bound(limits, files=ocr is not None)
    send(outgoing)
    while True:
        try:
            address = receive(incoming, _MOST_HEAD).decode()
            data = receive(incoming, limits.file_bytes)
        except StreamError:
            return
        _bound_time(limits)
        try:
            document = read_any(Source(address, data, limits, ocr))
            reply = packed(replace(document, address=address))
            del document
        except UnreadableError as exc:
            reply = _failed(str(exc))
        except MemoryError:
            # What is left of the memory is not known, so the next file gets a new process.
            reason = f"needs more than {limits.memory_bytes >> 20:,} MiB of memory"
            send(outgoing, json.dumps({"unreadable": reason, "last": True}).encode())
            return
        send(outgoing, reply)
        del data, reply
        send(outgoing, b"" if _is_usable(limits) else b"last")


def read_any(source: Source) -> Document:
    """Return the document of a file, whatever the library raises over it.

    Raises:
        UnreadableError: it cannot be read.
        MemoryError: it needs more than there is.
    """
    try:
        return read(source)
    except (UnreadableError, MemoryError):
        raise
    except ModuleNotFoundError as exc:
        raise UnreadableError(f"needs {exc.name}, which is not installed") from exc
    except RecursionError as exc:
        raise UnreadableError("is nested too deeply") from exc
    except Exception as exc:  # whatever a library raises over it, only this file is lost
        said = str(exc).strip().splitlines()
        raise UnreadableError(
            f"is damaged, or not a {source.ending} file "
            f"({type(exc).__name__}: {said[0][:200] if said else ''})"
        ) from exc


def _is_usable(limits: Limits) -> bool:
    """Return whether this process has enough memory left for the next file.

    What a library keeps of one file, as parts of an Office file that refer to each other, would otherwise
    count against another one.
    """
    if _resident_bytes() * _KEPT_SHARE <= limits.memory_bytes:
        return True
    gc.collect()
    return _resident_bytes() * _KEPT_SHARE <= limits.memory_bytes


def _resident_bytes() -> int:
    """Return the memory of this process; where the system has no /proc, the most that it ever had. Bytes."""
    try:
        with open("/proc/self/statm", "rb") as stream:  # noqa: PTH123 - read at every file
            return int(stream.read().split()[1]) * _PAGE_BYTES
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most << 10


def _failed(reason: str) -> bytes:
    return json.dumps({"unreadable": reason}).encode()


def _loaded(name: str) -> Ocr:
    """Return the function ``module:name``."""
    module, _, function = name.partition(":")
    found: Ocr = getattr(importlib.import_module(module), function)
    return found


def _without_network() -> None:
    """Enter a network of its own, without any interface, where the system lets everybody do so."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK)


def _bound(limits: Limits, *, files: bool) -> None:
    """Bound memory, files and dumps of this process.

    Args:
        limits: of one file.
        files: whether it may write files, as programs for OCR do.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not files:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        _lower(resource.RLIMIT_AS, limits.memory_bytes)


def _bound_time(limits: Limits) -> None:
    """Let this process use so much more processor time; the system ends it beyond."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + limits.cpu_s)


def _lower(what: int, most: int) -> None:
    """Set a soft bound, which stays below the hard one of this process."""
    hard = resource.getrlimit(what)[1]
    resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


if __name__ == "__main__":
    main()
    os._exit(0)  # whatever state a library is in, nothing of it matters any more
