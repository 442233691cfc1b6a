"""Find the files to read: folders, globs and single files; links are never followed."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenmesh.types.passage import Passage
from evenmesh_documents.source import Fetch

Records = Callable[[int], Iterator[Passage]]

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff%]")
_MAGIC: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Found:
    """A file, or why it is not read.

    Attributes:
        path: where it is on this machine.
        address: its path relative to the root, with ``/`` between folders; control characters and ``%`` are
            written as ``%`` and two hexadecimal digits.
        reason: why it is not read; empty if it is.
        fetch: returns its bytes, where it is not on this machine; given the most that it may have. None for a
            file of this machine.
        ending: ending of its format, where its address has none that says how it is read.
        held: whether ``fetch`` holds the bytes in memory.
        stamp: changes when the file does; empty where that is not known.
        records: yields the passages of a data set, given the most that it may have; None for a file. Raises
            UnreadableError.
    """

    path: Path
    address: str
    reason: str = ""
    fetch: Fetch | None = None
    held: bool = False
    ending: str = ""
    stamp: str = ""
    records: Records | None = None


class PathError(ValueError):
    """Raised for a path that names nothing, or lies outside the root."""


def find(paths: Sequence[str], root: Path | None = None) -> Iterator[Found]:
    """Yield the files below some paths, in order; of a folder all, those of its folders too.

    Files and folders whose name begins with a dot are left out. Links are named and not followed, so nothing
    outside the folder is read.

    Args:
        paths: folders, files, and patterns with ``*``, ``**``, ``?`` and ``[…]`` for shells that expand none.
        root: folder that addresses are relative to. Default: a folder itself, the fixed part of a pattern,
            and of a file the current folder, or its own folder where it lies elsewhere.

    Raises:
        PathError: a path names nothing, or lies outside ``root``; or two files would have the same address.
    """
    seen: dict[str, Path] = {}
    for given in paths:
        for path, base in _expanded(given):
            above = (base if root is None else root).resolve()
            start = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
            if not start.is_relative_to(above):
                if path != Path(given):
                    # A pattern matched what is behind a linked folder.
                    yield Found(path, addressed(path.as_posix()), "is behind a link out of the folder")
                    continue
                raise PathError(f"{given}: lies outside of the root {above}")
            for one in _below(start, above):
                first = seen.setdefault(one.address, one.path)
                if first != one.path:
                    raise PathError(
                        f"{first} and {one.path} both have the address {one.address!r}; set --root"
                    )
                if first is one.path:
                    yield one


def _expanded(given: str) -> Iterator[tuple[Path, Path]]:
    """Yield paths with the folder that their addresses are relative to."""
    if not given:
        raise PathError("a path is empty: name a file or a folder; . is the current folder")
    path = Path(given)
    if path.is_dir():
        yield path, path
    elif path.exists() or path.is_symlink():
        here = Path.cwd()
        yield path, here if (path.parent.resolve() / path.name).is_relative_to(here) else path.parent
    elif _MAGIC.search(given):
        parts = path.parts
        fixed = next(at for at, part in enumerate(parts) if _MAGIC.search(part))
        base = Path(*parts[:fixed])
        matched = sorted(base.glob("/".join(parts[fixed:])))
        if not matched:
            raise PathError(f"{given}: matches no file")
        yield from ((one, base) for one in matched if not one.is_dir())
    else:
        raise PathError(f"{given}: No such file or directory")


def _below(path: Path, root: Path) -> Iterator[Found]:
    """Yield a file, or the files of a folder by name; a stack, because folders nest deeply."""
    stack = [path]
    while stack:
        one = stack.pop()
        address = addressed(one.relative_to(root).as_posix())
        if one.is_symlink():
            inside = one.resolve().is_relative_to(root) if _resolves(one) else False
            yield Found(one, address, "is a link" if inside else "is a link out of the folder")
        elif one.is_dir():
            try:
                with os.scandir(one) as entries:
                    names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
            except OSError as exc:
                yield Found(one, address, f"cannot be opened: {exc.strerror}")
                continue
            stack.extend(one / name for name in reversed(names))
        elif one.is_file():
            yield Found(one, address, stamp=_stamp(one))
        else:
            yield Found(one, address, "is not a file")


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"


def _resolves(path: Path) -> bool:
    try:
        # From Python 3.13 a loop of links is no error, and stays a link.
        return not path.resolve().is_symlink()
    except (OSError, RuntimeError):
        return False


def addressed(path: str) -> str:
    """Return a path as an address: without characters that could steer a terminal or are none of a text."""
    return _CONTROL.sub(lambda match: "".join(f"%{byte:02X}" for byte in os.fsencode(match[0])), path)
