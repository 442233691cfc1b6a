"""Passages in Parquet files: whole collections on their way elsewhere.

Columns: ``id``, ``title``, ``text`` (text) and ``attributes`` (map of text to text). A file that
``evenmesh collection export`` wrote says in its metadata, under ``evenmesh``, which collection it is of, how
that is indexed, how many passages it has and the SHA-256 over all of them; a reader checks both. Other files
of these columns can be read too: ``title`` or ``text``, and ``attributes``, may be missing.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from evenmesh.files.passages import name_unread
from evenmesh.files.read_error import ReadError
from evenmesh.types.collection import Collection, Lexical
from evenmesh.types.passage import Passage
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField

_KEY: Final = b"evenmesh"
_FORMAT: Final = 1
_GROUP_PASSAGES: Final = 10_000
_GROUP_BYTES: Final = 32 << 20
_READ_AT_ONCE: Final = 500
_TEXTS: Final = ("id", "title", "text")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an exported file states about itself.

    Attributes:
        collection: name of the collection it is of.
        version: version of it.
        description: its free text.
        lexical: how its text is indexed.
        num_passages: passages in the file.
        sha256: over all passages in order, see :class:`_Digest`; hexadecimal.
    """

    collection: str
    version: str
    description: str
    lexical: Lexical
    num_passages: int
    sha256: str


class _Digest:
    """SHA-256 over passages: of each its id, title and text, the number of its attributes, and those by name.

    Each text is preceded by its length in bytes, and each number is 8 bytes, the lowest first.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.passages = 0

    def add(self, passage: Passage) -> None:
        """Add the next passage."""
        self.passages += 1
        for one in (passage.id, passage.title, passage.text):
            self._text(one)
        self._number(len(passage.attributes))
        for one in chain.from_iterable(sorted(passage.attributes.items())):
            self._text(one)

    def hex(self) -> str:
        """Return the digest of all passages that were added, in hexadecimal."""
        return self._hash.hexdigest()

    def _number(self, value: int) -> None:
        self._hash.update(value.to_bytes(8, "little"))

    def _text(self, text: str) -> None:
        data = text.encode()
        self._number(len(data))
        self._hash.update(data)


class Writer:
    """Writes a file row group by row group; there is none until all of it is written.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._digest = _Digest()
        self._held: list[Passage] = []
        self._size = 0
        self._writer = pq.ParquetWriter(
            self._part, _schema(), compression="zstd", write_page_checksum=True, store_schema=True
        )

    def add(self, passage: Passage) -> None:
        """Add the next passage."""
        self._digest.add(passage)
        self._held.append(passage)
        self._size += len(passage.text) + len(passage.title)
        if len(self._held) >= _GROUP_PASSAGES or self._size >= _GROUP_BYTES:
            self._flush()

    def finish(self, collection: Collection) -> Manifest:
        """Write the rest and the manifest, and move the file to its place."""
        self._flush()
        manifest = Manifest(
            collection.name,
            collection.version,
            collection.description,
            collection.lexical,
            self._digest.passages,
            self._digest.hex(),
        )
        described = json.dumps({"format": _FORMAT, **asdict(manifest)})
        self._writer.add_key_value_metadata({_KEY.decode(): described})
        self._writer.close()
        self._part.replace(self._path)
        return manifest

    def abandon(self) -> None:
        """Remove what was written."""
        self._writer.close()
        self._part.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._held:
            return
        columns = {
            "id": [one.id for one in self._held],
            "title": [one.title for one in self._held],
            "text": [one.text for one in self._held],
            "attributes": [sorted(one.attributes.items()) for one in self._held],
        }
        self._writer.write_table(pa.table(columns, schema=_schema()))
        self._held.clear()
        self._size = 0


def manifest(path: Path) -> Manifest | None:
    """Return the manifest of an exported file; None for another Parquet file.

    Raises:
        ReadError: it is no Parquet file, was cut off, or says what cannot be understood.
    """
    with opened(path) as file:
        return _manifest(path, file)


def read(path: Path, unread: set[str] | None = None) -> Iterator[Passage]:
    """Yield the passages of a file in order; memory grows with the number of ids.

    What an exported file says of itself is checked when the last passage has been handed out: who acts on
    passages reads the file once before, as :func:`evenmesh.files.passages.check` does.

    Args:
        path: the file.
        unread: takes the names of columns that are not read, 20 at most.

    Raises:
        ReadError: it is no Parquet file or not of these columns, is damaged or was cut off, or a row is no
            passage or repeats an id.
    """
    seen: dict[str, int] = {}
    digest = _Digest()
    with opened(path) as file:
        expected = _manifest(path, file)
        columns = _columns(path, file.schema_arrow)
        if unread is not None:
            name_unread(set(file.schema_arrow.names) - set(columns), unread)
        try:
            for batch in file.iter_batches(batch_size=_READ_AT_ONCE, columns=columns):
                for row in batch.to_pylist():
                    passage = _passage(path, digest.passages + 1, row)
                    first = seen.setdefault(passage.id, digest.passages + 1)
                    if first <= digest.passages:
                        raise row_error(
                            path, digest.passages + 1, f"repeats the id {passage.id!r} of row {first}"
                        )
                    digest.add(passage)
                    yield passage
        except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
            raise ReadError(path, None, f"is damaged ({first_line(exc)})") from exc
    if expected is not None:
        if digest.passages != expected.num_passages:
            raise ReadError(
                path, None, f"has {digest.passages:,} passages and says {expected.num_passages:,}"
            )
        if digest.hex() != expected.sha256:
            raise ReadError(path, None, "is damaged: its SHA-256 differs from the recorded one")


def check(path: Path) -> Manifest:
    """Read the whole of an exported file, check it against its manifest, and return that.

    Raises:
        ReadError: as :func:`read`; or the file was not exported.
    """
    found = manifest(path)
    if found is None:
        raise ReadError(
            path, None, "was not written by `evenmesh collection export`; `evenmesh ingest` may read it"
        )
    for _ in read(path):
        pass
    return found


def parts(passages: Iterable[Passage], most: int, most_bytes: int) -> Iterator[list[Passage]]:
    """Yield passages in parts of at most ``most`` passages and about ``most_bytes`` bytes."""
    part: list[Passage] = []
    size = 0
    for passage in passages:
        part.append(passage)
        size += len(passage.title.encode()) + len(passage.text.encode())
        if len(part) == most or size >= most_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def _schema() -> pa.Schema:
    fields = [pa.field(name, pa.string(), nullable=False) for name in _TEXTS]
    return pa.schema([*fields, pa.field("attributes", pa.map_(pa.string(), pa.string()), nullable=False)])


def opened(path: Path) -> pq.ParquetFile:
    """Open a file whose pages are checked as they are read.

    Raises:
        ReadError: it cannot be read, is no Parquet file, or was cut off.
    """
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, UnicodeDecodeError) as exc:
        raise ReadError(path, None, f"is not a whole Parquet file ({first_line(exc)})") from exc
    except OSError as exc:
        raise ReadError(path, None, exc.strerror or first_line(exc)) from exc


def _manifest(path: Path, file: pq.ParquetFile) -> Manifest | None:
    stored = (file.metadata.metadata or {}).get(_KEY)
    if stored is None:
        return None
    try:
        values = json.loads(stored)
        if values.pop("format") != _FORMAT:
            raise ReadError(path, None, "was written by a later version of evenmesh")
        return Manifest(**{**values, "lexical": Lexical(**values["lexical"])})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        if isinstance(exc, ReadError):
            raise
        raise ReadError(path, None, "has metadata that cannot be read") from exc


def _columns(path: Path, schema: pa.Schema) -> list[str]:
    """Return the columns of a file that are read."""
    found: list[str] = [name for name in (*_TEXTS, "attributes") if name in schema.names]
    if "id" not in found or not {"title", "text"} & set(found):
        raise ReadError(path, None, f"must have columns id and text, has {', '.join(schema.names)}")
    for name in found:
        kind = schema.field(name).type
        if name in _TEXTS and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ReadError(path, None, f"column {name!r} must be string, is {kind}")
        if name == "attributes" and not kind.equals(pa.map_(pa.string(), pa.string())):
            raise ReadError(path, None, f"column 'attributes' must be map<string, string>, is {kind}")
    return found


def _passage(path: Path, number: int, row: dict[str, object]) -> Passage:
    one, title, text = (row.get(name) or "" for name in _TEXTS)
    attributes = row.get("attributes") or []
    passage = Passage(str(one), str(text), str(title), {})
    try:
        if not isinstance(attributes, list) or any(value is None for _, value in attributes):
            raise InvalidField("passage.attributes", "must all have a value")
        passage = Passage(passage.id, passage.text, passage.title, dict(attributes))
        checks.passage("passage", passage)
    except InvalidField as exc:
        raise row_error(path, number, f"{str(exc.field).removeprefix('passage.')} {exc.message}") from exc
    return passage


def row_error(path: Path, number: int, message: str) -> ReadError:
    """Return the error of a row, counted from 1."""
    return ReadError(path, None, f"row {number}: {message}")


def first_line(exc: Exception) -> str:
    """Return the first line of what an error says; its type where it says nothing."""
    return str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
