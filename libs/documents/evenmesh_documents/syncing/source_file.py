"""Read and write the file of named sources: YAML, to be shared as people share code."""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from evenmesh.commands.ingest import LexicalOptions
from evenmesh_documents.data_sets.address import is_data_set
from evenmesh_documents.options import PassageOptions, ReadingOptions
from evenmesh_documents.origins.remote import scheme_of
from evenmesh_documents.syncing.naming import checked_name

MAX_BYTES: Final = 1 << 20
MAX_SOURCES: Final = 1_000
MAX_PATHS: Final = 1_000
MAX_GRACE: Final = timedelta(days=3_650)
DEFAULT_GRACE: Final = "1d"

_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd]?)")
_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_COLLECTION: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_LISTS: Final = ("limit", "provider", "attribute")
_TEXTS: Final = ("root", "ocr", "tokenizer", "base_url", "analyzer")
_INTEGERS: Final = ("size", "overlap")
_SWITCHES: Final = ("allow_private",)
_OPTIONS: Final = {
    **{one.name: ReadingOptions for one in fields(ReadingOptions) if one.name != "jobs"},
    **{one.name: PassageOptions for one in fields(PassageOptions)},
    **{one.name: LexicalOptions for one in fields(LexicalOptions)},
}
"""The options of a source: those of ``evenmesh ingest``, but ``jobs``, which follows from the machine."""


class SourceFileError(ValueError):
    """Raised for a file of sources that cannot be read; the message names the file and the place."""


@dataclass(frozen=True, slots=True)
class NamedSource:
    """A source of a collection.

    Attributes:
        name: 1 to 32 of a-z, 0-9, ``-`` and ``_``.
        collection: the collection that has its passages.
        paths: folders, files, patterns and addresses.
        grace: how long the passages of a missing file stay, such as ``1d``, ``12h``, ``30m`` or ``0``.
        reading: what is read.
        passages: how documents become passages.
        lexical: how the text of a new collection is indexed.
    """

    name: str
    collection: str
    paths: tuple[str, ...]
    grace: str
    reading: ReadingOptions
    passages: PassageOptions
    lexical: LexicalOptions

    @property
    def grace_time(self) -> timedelta:
        """Return the grace as a time."""
        return duration(self.grace)


def duration(text: str) -> timedelta:
    """Return a time such as ``90``, ``90s``, ``30m``, ``12h`` or ``1d``.

    Raises:
        ValueError: it is none, or longer than ten years.
    """
    found = _DURATION.fullmatch(text)
    time = timedelta(seconds=int(found[1]) * _UNITS[found[2]]) if found is not None else None
    if time is None or time > MAX_GRACE:
        raise ValueError("must be a number with s, m, h or d behind it, such as 12h, at most 3650d")
    return time


def load(path: Path) -> dict[str, NamedSource]:
    """Return the sources of a file, by name; none where there is no file.

    Paths are relative to the folder of the file.

    Raises:
        SourceFileError: it cannot be read, or states what is no source.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise SourceFileError(f"{path}: {exc.strerror}") from exc
    if len(data) > MAX_BYTES:
        raise SourceFileError(f"{path}: has more than {MAX_BYTES:,} bytes")
    return parsed(data, path)


def parsed(data: bytes, path: Path) -> dict[str, NamedSource]:
    """Return the sources that a file with these bytes states.

    Raises:
        SourceFileError: it states what is no source.
    """
    try:
        values = yaml.safe_load(data.decode())
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, AttributeError) as exc:
        place = getattr(exc, "problem_mark", None)
        where = "" if place is None else f"line {place.line + 1}: "
        raise SourceFileError(f"{path}: {where}is not YAML") from exc
    stated = values.get("sources") if isinstance(values, dict) else None
    if not isinstance(stated, dict) or len(values) != 1:
        raise SourceFileError(f"{path}: must have `sources`, and sources by name below it")
    if len(stated) > MAX_SOURCES:
        raise SourceFileError(f"{path}: has {len(stated):,} sources, at most {MAX_SOURCES:,} are read")
    found = {}
    for name, one in stated.items():
        try:
            found[name] = _source(name, one, path.parent)
        except ValueError as exc:
            raise SourceFileError(f"{path}: {name if isinstance(name, str) else 'a source'}: {exc}") from exc
    return found


def save(path: Path, sources: Mapping[str, NamedSource]) -> None:
    """Write a file of sources, all or nothing."""
    values = {"sources": {one.name: _values(one) for one in sources.values()}}
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(handle, "w", encoding="utf-8") as stream:  # noqa: PTH123 - by descriptor
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def absolute(path: str, folder: Path) -> str:
    """Return a path that means the same from every folder; an address stays.

    Raises:
        ValueError: it begins with ``~`` and the name of nobody here.
    """
    if scheme_of(path) or is_data_set(path):
        return path
    try:
        return str(folder.absolute() / Path(path).expanduser())
    except RuntimeError as exc:
        raise ValueError(f"{path}: this machine has no user of that name") from exc


def made(
    name: str,
    collection: str,
    paths: Sequence[str],
    grace: str,
    reading: ReadingOptions,
    passages: PassageOptions,
    lexical: LexicalOptions,
    folder: Path,
) -> NamedSource:
    """Return a source, once all of it is checked.

    Args:
        name: its name.
        collection: the collection that it fills.
        paths: folders, files, patterns and addresses.
        grace: as :attr:`NamedSource.grace`.
        reading: what is read.
        passages: how documents become passages.
        lexical: how the text of a new collection is indexed.
        folder: what paths are relative to.

    Raises:
        ValueError: a value is outside its range.
    """
    checked_name(name)
    if not _COLLECTION.fullmatch(collection):
        raise ValueError("collection must be 1 to 64 of a-z, 0-9, - and _, and begin with a letter or digit")
    if not 1 <= len(paths) <= MAX_PATHS or not all(paths) or any("\0" in one for one in paths):
        raise ValueError(f"paths must be 1 to {MAX_PATHS:,}, none of them empty or with NUL characters")
    if not 0 <= reading.interval <= 60:
        raise ValueError("interval must be 0 to 60 seconds")
    try:
        duration(grace)
    except ValueError as exc:
        raise ValueError(f"grace {exc}") from exc
    root = None if reading.root is None else Path(absolute(str(reading.root), folder))
    by = passages.counted_by
    if by not in ("bundled", "words"):
        by = absolute(by, folder)
    return NamedSource(
        name,
        collection,
        tuple(absolute(one, folder) for one in paths),
        grace,
        replace(reading, root=root, jobs=None),
        # Which tokenizer counts must not follow from what the next machine has installed.
        replace(passages, tokenizer=by),
        lexical,
    )


def _source(name: object, stated: object, folder: Path) -> NamedSource:
    if not isinstance(name, str):
        raise ValueError("the name of a source must be a text")
    if not isinstance(stated, dict):
        raise ValueError("must have collection and paths")
    known = ("collection", "paths", "grace", *_OPTIONS)
    if unknown := [one for one in stated if one not in known]:
        raise ValueError(f"has {unknown[0]!r}; there are {', '.join(known)}")
    paths = stated.get("paths")
    if isinstance(paths, str):
        paths = [paths]
    if not isinstance(paths, list) or not all(isinstance(one, str) for one in paths):
        raise ValueError("paths must be a list of texts")
    collection = stated.get("collection")
    if not isinstance(collection, str):
        raise ValueError("collection must be a text")
    grace = stated.get("grace", DEFAULT_GRACE)
    groups: dict[type, dict[str, Any]] = {ReadingOptions: {}, PassageOptions: {}, LexicalOptions: {}}
    for key, kind in _OPTIONS.items():
        if key in stated:
            groups[kind][key] = _option(key, stated[key])
    return made(
        name,
        collection,
        paths,
        str(grace) if isinstance(grace, int) else grace if isinstance(grace, str) else "none",
        ReadingOptions(**groups[ReadingOptions]),
        PassageOptions(**groups[PassageOptions]),
        LexicalOptions(**groups[LexicalOptions]),
        folder,
    )


def _option(key: str, value: object) -> object:
    if key in _LISTS:
        if isinstance(value, str):
            return [value]
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return value
        raise ValueError(f"{key} must be a list of texts")
    if key in _TEXTS:
        if not isinstance(value, str):
            raise ValueError(f"{key} must be a text")
        return Path(value) if key == "root" else value
    if key in _SWITCHES:
        if not isinstance(value, bool):
            raise ValueError(f"{key} must be true or false")
        return value
    numbers: tuple[type, ...] = (int,) if key in _INTEGERS else (int, float)
    if not isinstance(value, numbers) or isinstance(value, bool):
        raise ValueError(f"{key} must be a number")
    return value


def _values(source: NamedSource) -> dict[str, object]:
    values: dict[str, object] = {
        "collection": source.collection,
        "paths": list(source.paths),
        "grace": source.grace,
    }
    for group in (source.reading, source.passages, source.lexical):
        for one in fields(group):
            value = getattr(group, one.name)
            if one.name in _OPTIONS and value not in (None, one.default):
                values[one.name] = str(value) if isinstance(value, Path) else value
    return values
