"""Office and EPUB files: zip archives, checked before anything of them is unpacked."""

import io
import re
import struct
import zipfile
import zlib
from typing import Final

from evenmesh_documents.document import UnreadableError
from evenmesh_documents.source import Source

Archive = zipfile.ZipFile
"""An archive that :func:`opened` has checked."""

_OLE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_FREE_BYTES: Final = 1 << 20
"""What may be unpacked at any ratio: a small file of zeros harms nobody."""
_HEAD_BYTES: Final = 4_096
_LOCAL: Final = struct.Struct("<26xHH")
"""The header before a part, of which the lengths of its name and of its extra field are read."""
_DECLARATION: Final = b"<!"
_ENTITY: Final = re.compile(rb"<!ENTITY", re.IGNORECASE)
_DOCTYPE: Final = re.compile(rb"<!DOCTYPE", re.IGNORECASE)
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")
_XML: Final = (".xml", ".rels", ".opf", ".ncx", ".xhtml", ".html", ".htm")
_DAMAGED: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError)


def opened(source: Source, *, doctype: bool) -> Archive:
    """Return an archive that is safe to unpack in memory; nothing of it is ever written to a disk.

    Args:
        source: the file.
        doctype: whether its pages may have a document type: those of EPUB do, Office files never.
            Declarations of entities are refused in both.

    Raises:
        UnreadableError: it is no archive, is encrypted, or unpacks to more than the limits.
    """
    if source.data.startswith(_OLE):
        raise UnreadableError("is encrypted, or of an old format of Office")
    try:
        archive = zipfile.ZipFile(io.BytesIO(source.data))
    except _DAMAGED as exc:
        raise UnreadableError(f"is damaged, or not a {source.ending} file") from exc
    entries = archive.infolist()
    limits = source.limits
    if len(entries) > limits.entries:
        raise UnreadableError(f"packs {len(entries):,} files, at most {limits.entries:,} are read")
    if any(entry.flag_bits & 1 for entry in entries):
        raise UnreadableError("is encrypted")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > limits.unpacked_bytes:
        raise UnreadableError(f"unpacks to {unpacked:,} bytes, at most {limits.unpacked_bytes:,} are read")
    # zipfile never yields more of a file than its entry states, so what is stated here bounds what is
    # unpacked.
    if unpacked > _FREE_BYTES and unpacked > limits.unpacked_ratio * max(1, len(source.data)):
        raise UnreadableError(
            f"unpacks to {unpacked // max(1, len(source.data)):,} times its size, "
            f"at most {limits.unpacked_ratio:,} times are read"
        )
    for entry in entries:
        if entry.filename.lower().endswith(_XML):
            _check_head(source.data, archive, entry, doctype=doctype)
    return archive


def member(archive: Archive, name: str) -> bytes:
    """Return a file of an archive.

    Raises:
        UnreadableError: there is none of this name, or it is damaged.
    """
    try:
        return archive.read(name)
    except KeyError as exc:
        raise UnreadableError(f"lacks {name}") from exc
    except _DAMAGED as exc:
        raise UnreadableError(f"is damaged at {name}") from exc


def _check_head(data: bytes, archive: Archive, entry: zipfile.ZipInfo, *, doctype: bool) -> None:
    """Raise where a part declares entities: they can grow to any size, or name files of this machine."""
    try:
        head = _head(data, archive, entry)
    except (*_DAMAGED, struct.error) as exc:
        raise UnreadableError(f"is damaged at {entry.filename}") from exc
    if head.startswith(_WIDE):
        head = head.decode("utf-16", errors="ignore").encode()
    # Most parts have neither, which is seen much faster than searched for without regard to case.
    if _DECLARATION not in head:
        return
    if _ENTITY.search(head) or (not doctype and _DOCTYPE.search(head)):
        raise UnreadableError(f"declares XML entities in {entry.filename}")


def _head(data: bytes, archive: Archive, entry: zipfile.ZipInfo) -> bytes:
    """Return the first bytes of a part, in half of the time of :meth:`zipfile.ZipFile.open`."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with archive.open(entry) as stream:
            return stream.read(_HEAD_BYTES)
    begin = entry.header_offset + _LOCAL.size + sum(_LOCAL.unpack_from(data, entry.header_offset))
    packed = memoryview(data)[begin : begin + entry.compress_size]
    if entry.compress_type == zipfile.ZIP_STORED:
        return bytes(packed[:_HEAD_BYTES])
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, _HEAD_BYTES)
