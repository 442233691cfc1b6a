"""Read the files within archives, in memory and within bounds; nothing is unpacked to a disk by its name."""

import bz2
import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from evenmesh_documents.document import UnreadableError
from evenmesh_documents.limits import Limits
from evenmesh_documents.origins.found import Found, addressed
from evenmesh_documents.parsing.parsers import descriptor_of
from evenmesh_documents.source import held

ENDINGS: Final = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2")
"""Endings of the archives that are read."""

_FREE_BYTES: Final = 1 << 20
"""What may be unpacked at any ratio."""
_CHUNK: Final = 1 << 18
_MOST_AT_ONCE: Final = 1 << 20
"""Longest header of a tar archive; headers are read whole."""
_HEADERS: Final = 2_048
"""Bytes of headers and padding of a file in a tar archive, about."""
_TEXTS: Final = (  # headers that hold the long name or the attributes of the next one
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
"""LZMA is left out: an archive says how much memory its decoder takes."""
_LINK: Final = 0o120000
_KIND: Final = 0o170000


def is_archive(address: str) -> bool:
    """Return whether a file is an archive by its ending."""
    return address.lower().endswith(ENDINGS)


def expanded(files: Iterable[Found], limits: Limits) -> Iterator[Found]:
    """Yield files, and instead of each archive the files within it, with ``archive/name`` as their addresses.

    Files and folders whose name begins with a dot are left out, as those of folders are. What is not read is
    named: links, names that lead out of the archive, files beyond a limit. Where an archive is damaged or
    beyond a limit as a whole, the archive is named, after the files that were read before that was known.

    Args:
        files: what was found.
        limits: bounds of each archive, with the archives in it, and of each file.
    """
    for one in files:
        if one.reason or one.records is not None or not is_archive(one.address):
            yield one
            continue
        try:
            with _opened(one, limits) as stream:
                yield from _within(stream, one.address, _Budget(limits, _size(stream)), depth=1)
        except UnreadableError as exc:
            yield Found(one.path, one.address, str(exc))


class _Budget:
    """What an archive may still take, with all archives in it."""

    def __init__(self, limits: Limits, packed: int) -> None:
        self.limits = limits
        self._packed = max(1, packed)
        self._entries = self._bytes = 0

    def entry(self) -> None:
        """Count a file.

        Raises:
            UnreadableError: there are too many.
        """
        self._entries += 1
        if self._entries > self.limits.entries:
            raise UnreadableError(f"packs more than {self.limits.entries:,} files")

    def take(self, size: int) -> None:
        """Count unpacked bytes.

        Raises:
            UnreadableError: there are too many, or too many for what was packed.
        """
        self._bytes += size
        if self._bytes > self.limits.unpacked_bytes:
            raise UnreadableError(f"unpacks to more than {self.limits.unpacked_bytes:,} bytes")
        if self._bytes > max(_FREE_BYTES, self.limits.unpacked_ratio * self._packed):
            raise UnreadableError(f"unpacks to more than {self.limits.unpacked_ratio:,} times its size")


@dataclass(frozen=True, slots=True)
class _Member:
    """A file in an archive: its name and size, why it is not read, and what opens it."""

    name: str
    size: int
    reason: str
    opened: Callable[[], IO[bytes]]


def _within(stream: IO[bytes], address: str, budget: _Budget, depth: int) -> Iterator[Found]:
    """Yield the files of one archive.

    Raises:
        UnreadableError: it is damaged, or beyond a limit as a whole.
    """
    members = (
        _zipped(stream, budget) if address.lower().endswith(".zip") else _tarred(stream, address, budget)
    )
    seen: set[str] = set()
    while True:
        try:
            member = next(members, None)
        except UnreadableError:
            raise
        except Exception as exc:  # whatever a library raises over it, only the rest of this archive is lost
            raise UnreadableError("is damaged, or no archive of its ending") from exc
        if member is None:
            return
        budget.entry()
        parts = member.name.split("/")
        inner = f"{address}/{addressed(member.name)}"
        if member.name.startswith("/") or "\\" in member.name or {"", ".", ".."} & set(parts):
            yield Found(Path(inner), inner, "has a name that leads out of its archive, or is none")
            continue
        if any(part.startswith(".") for part in parts) or parts[0] == "__MACOSX":
            continue
        reason = member.reason or ("has a name that its archive has already" if inner in seen else "")
        seen.add(inner)
        if reason:
            yield Found(Path(inner), inner, reason)
        else:
            yield from _member(member, inner, budget, depth)


def _member(member: _Member, address: str, budget: _Budget, depth: int) -> Iterator[Found]:
    limits = budget.limits
    if member.size > limits.file_bytes:
        reason = f"has {member.size:,} bytes, at most {limits.file_bytes:,} are read"
        yield Found(Path(address), address, reason)
        return
    nested = is_archive(address)
    if nested and depth >= limits.archive_depth:
        yield Found(Path(address), address, f"is an archive within {depth:,} others")
        return
    try:
        data = _content(member, budget)
    except _DamagedError:
        yield Found(Path(address), address, "is damaged")
        return
    if not nested:
        yield Found(Path(address), address, fetch=held(data), held=True)
        return
    try:
        yield from _within(io.BytesIO(data), address, budget, depth + 1)
    except UnreadableError as exc:
        yield Found(Path(address), address, str(exc))


class _DamagedError(Exception):
    """One file of an archive cannot be unpacked."""


def _content(member: _Member, budget: _Budget) -> bytes:
    """Return what is packed.

    Raises:
        UnreadableError: the archive unpacks to too much.
        _DamagedError: it cannot be unpacked.
    """
    parts: list[bytes] = []
    try:
        with member.opened() as stream:
            while part := stream.read(_CHUNK):
                budget.take(len(part))
                parts.append(part)
    except UnreadableError:
        raise
    except Exception as exc:
        raise _DamagedError from exc
    return b"".join(parts)


def _zipped(stream: IO[bytes], budget: _Budget) -> Iterator[_Member]:
    with zipfile.ZipFile(stream) as archive:
        entries = archive.infolist()
        if len(entries) > budget.limits.entries:
            raise UnreadableError(f"packs {len(entries):,} files, at most {budget.limits.entries:,} are read")
        for entry in entries:
            if entry.is_dir():
                continue
            reason = ""
            if entry.flag_bits & 1:
                reason = "is encrypted"
            elif (entry.external_attr >> 16) & _KIND == _LINK:
                reason = "is a link"
            elif entry.compress_type not in _METHODS:
                reason = "is packed by a method that is not read"
            # zipfile never yields more of a file than its entry states.
            yield _Member(entry.filename, entry.file_size, reason, partial(archive.open, entry))


def _tarred(stream: IO[bytes], address: str, budget: _Budget) -> Iterator[_Member]:
    ending = address.lower()
    raw: IO[bytes] = stream
    if ending.endswith("gz"):
        raw = cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    elif ending.endswith("bz2"):
        raw = bz2.BZ2File(stream)
    bounded = cast("IO[bytes]", _BoundedStream(raw, budget.limits))
    with tarfile.open(fileobj=bounded, mode="r:", tarinfo=_Header) as archive:
        while (entry := archive.next()) is not None:
            # What was read is not needed again, and would grow with the archive.
            archive.members = []  # type: ignore[attr-defined]
            if entry.isdir():
                continue
            reason = ""
            if entry.islnk() or entry.issym():
                reason = "is a link"
            elif not entry.isfile() or entry.issparse():
                reason = "is not a file"
            name = PurePosixPath(entry.name).as_posix() if entry.name.startswith("./") else entry.name
            yield _Member(name, entry.size, reason, partial(_unpacked, archive, entry))


def _unpacked(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(entry)
    if stream is None:
        raise tarfile.ReadError
    return stream


class _Header(tarfile.TarInfo):
    """A header of a tar archive that refuses a long name, or attributes, of more than are read at once.

    It states their length, and Python reads them whole: in one piece, or, from 2026 on, in pieces.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """Read what belongs to the header; tarfile says that subclasses may override this method."""
        if self.type in _TEXTS and self.size > _MOST_AT_ONCE:
            raise UnreadableError(f"has a header of more than {_MOST_AT_ONCE:,} bytes")
        read: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]  # not in its stubs
        return read


class _BoundedStream:
    """A stream that refuses to be read at once, or as a whole, beyond what an archive may have."""

    def __init__(self, inner: IO[bytes], limits: Limits) -> None:
        self._inner = inner
        self._most = limits.unpacked_bytes + limits.entries * _HEADERS

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _MOST_AT_ONCE:
            raise UnreadableError(f"has a header of more than {_MOST_AT_ONCE:,} bytes")
        self._check(self._inner.tell() + size)
        return self._inner.read(size)

    def seek(self, position: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation
        self._check(position)
        return self._inner.seek(position)

    def tell(self) -> int:
        return self._inner.tell()

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._inner.close()

    def _check(self, position: int) -> None:
        if position > self._most + _MOST_AT_ONCE:
            raise UnreadableError(f"unpacks to more than {self._most:,} bytes with its headers")


def _opened(one: Found, limits: Limits) -> IO[bytes]:
    """Return the bytes of an archive as a stream; a link is not followed."""
    if one.fetch is not None:
        return io.BytesIO(one.fetch(limits.file_bytes))
    return descriptor_of(one.path, limits.unpacked_bytes)


def _size(stream: IO[bytes]) -> int:
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    return size
