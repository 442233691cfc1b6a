"""From files to passages: read, split, attribute, drop repeated ones, and keep them until they are sent."""

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from evenmesh.files import passages as passage_files
from evenmesh.files.read_error import ReadError
from evenmesh.types.passage import Passage
from evenmesh.wire import checks
from evenmesh.wire.errors import InvalidField
from evenmesh_documents.attribution import Attribution
from evenmesh_documents.document import Document, MissingError, UnreadableError
from evenmesh_documents.duplicates import DuplicateFinder, Duplicates
from evenmesh_documents.limits import Limits
from evenmesh_documents.origins.archives import expanded, is_archive
from evenmesh_documents.origins.found import Found, Records
from evenmesh_documents.parsing.parsers import Parsers
from evenmesh_documents.source import Fetch
from evenmesh_documents.splitting import Splitting, split

PASSAGE_FILES: Final = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz", ".parquet")
"""Endings of files that hold passages rather than a document."""

OnFile = Callable[[int, int], None]
"""Called with the number of files done, and of files known, which grows as archives are read."""

OnRead = Callable[[str], None]
"""Called with the address of each file that was read."""

Named = Callable[[str, str], str]
"""Returns the id of a passage, given the address of its file and what tells it from others of the file.
Raises UnreadableError where the id would be too long."""


class Spool:
    """Keeps passages in a temporary file, so that memory does not grow with them."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed by close
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def add(self, passage: Passage) -> None:
        """Keep a passage."""
        record = [passage.id, passage.text, passage.title, dict(passage.attributes)]
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._count += 1

    def __iter__(self) -> Iterator[Passage]:
        self._file.seek(0)
        for line in self._file:
            passage_id, text, title, attributes = json.loads(line)
            yield Passage(passage_id, text, title, attributes)


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file that is not read, or what of a file is not.

    Attributes:
        address: the file.
        reason: why, or what.
        missing: whether it is not there any more.
    """

    address: str
    reason: str
    missing: bool = False


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was made of some files.

    Attributes:
        files: files that were read.
        passages: passages to add.
        providers: passages of each provider.
        rules: passages whose provider each rule found.
        without_provider: passages without a provider.
        oversize: passages longer than asked for, because a row of a table is.
        empty: files without any text.
        skipped: files that were not read, and why.
        notes: what of the files that were read was not.
        duplicates: passages that say the same.
    """

    files: int
    passages: int
    providers: Mapping[str, int]
    rules: Mapping[str, int]
    without_provider: int
    oversize: int
    empty: Sequence[str]
    skipped: Sequence[Skipped]
    notes: Sequence[Skipped]
    duplicates: Duplicates

    @property
    def only_provider(self) -> str:
        """Return the provider that has every passage, of two or more; empty if there are several or none."""
        if len(self.providers) == 1 and not self.without_provider and self.passages > 1:
            return next(iter(self.providers))
        return ""


@dataclass(slots=True)
class _Counts:
    files: int = 0
    oversize: int = 0
    without_provider: int = 0
    providers: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    empty: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[Skipped] = field(default_factory=list)


def gather(
    files: Sequence[Found],
    parsers: Parsers,
    spool: Spool,
    *,
    splitting: Splitting,
    attribution: Attribution,
    named: Named | None = None,
    on_file: OnFile | None = None,
    on_read: OnRead | None = None,
    aside_bytes: int = sys.maxsize,
) -> Gathered:
    """Read files and put their passages into a spool; what cannot be read is named, and the rest goes on.

    Passages of JSON lines, Parquet and data sets are taken as they are: they are not split, nor compared with
    others. Those of data sets get attributes by the rules.

    Args:
        files: what was found.
        parsers: read them.
        spool: takes the passages.
        splitting: how documents are split.
        attribution: rules for the attributes.
        named: names passages; without it ids are those of :class:`Chunk`, and those that files state.
        on_file: called after each file.
        on_read: called for each file that was read.
        aside_bytes: most bytes of files of passages in archives, together; further ones are named. Bytes.
    """
    counts = _Counts()
    duplicates = DuplicateFinder()
    ids: set[str] = set()
    given = {one.address for one in files}
    known = len(files) - sum(is_archive(one.address) for one in files if not one.reason)
    done = 0
    left = aside_bytes
    later: list[Found] = []

    def finished(address: str, *, was_read: bool) -> None:
        nonlocal done
        done += 1
        if was_read and on_read is not None:
            on_read(address)
        if on_file is not None:
            on_file(done, max(known, done))

    def documents(folder: Path) -> Iterator[tuple[Path | Fetch, str, str]]:
        """Yield what is to be parsed; put files of passages aside."""
        nonlocal known, left
        for one in expanded(files, parsers.limits):
            known += one.address not in given
            if one.held and not one.reason and of_passages(one.address):
                one = _aside(one, folder / str(len(later)), parsers.limits, left)
                left -= 0 if one.reason else one.path.stat().st_size
            if one.reason:
                counts.skipped.append(Skipped(one.address, one.reason))
                finished(one.address, was_read=False)
            elif one.records is not None or of_passages(one.address):
                later.append(one)
            else:
                yield one.fetch or one.path, one.address, one.ending

    with tempfile.TemporaryDirectory(prefix="evenmesh-") as folder:
        for parsed in parsers.read_all(documents(Path(folder))):
            if parsed.document is None:
                counts.skipped.append(Skipped(parsed.address, parsed.reason, parsed.missing))
            else:
                _document(parsed.document, counts, duplicates, ids, spool, splitting, attribution, named)
            finished(parsed.address, was_read=parsed.document is not None)
        for one in later:
            if one.records is not None:
                was_read = _data_set(one, one.records, counts, ids, spool, attribution, named, parsers.limits)
            else:
                was_read = _passages(one, counts, ids, spool, named, parsers.limits)
                if was_read and attribution.has_rules:
                    counts.notes.append(Skipped(one.address, _TAKEN_AS_THEY_ARE))
            finished(one.address, was_read=was_read)
    return Gathered(
        files=counts.files,
        passages=len(spool),
        providers=dict(sorted(counts.providers.items(), key=lambda one: (-one[1], one[0]))),
        rules=dict(counts.rules),
        without_provider=counts.without_provider,
        oversize=counts.oversize,
        empty=tuple(counts.empty),
        skipped=tuple(sorted(counts.skipped, key=lambda one: one.address)),
        notes=tuple(counts.notes),
        duplicates=duplicates.found(),
    )


_TAKEN_AS_THEY_ARE: Final = "its passages keep the attributes that they have: no rule for attributes applies"


def of_passages(address: str) -> bool:
    """Return whether a file holds passages rather than a document."""
    return address.lower().endswith(PASSAGE_FILES)


def _document(
    document: Document,
    counts: _Counts,
    duplicates: DuplicateFinder,
    ids: set[str],
    spool: Spool,
    splitting: Splitting,
    attribution: Attribution,
    named: Named | None,
) -> None:
    counts.files += 1
    counts.notes += [Skipped(document.address, note) for note in document.notes]
    chunks = split(document, splitting)
    if not chunks:
        counts.empty.append(document.address)
    for chunk in chunks:
        provider, rule = attribution.provider_of(document, chunk)
        if duplicates.repeats(chunk.id, provider, chunk.text):
            continue
        attributes = attribution.attributes(document, chunk, provider)
        # A hash is short enough for every address, which is cut.
        name = named(document.address, chunk.id.rpartition("#")[2]) if named is not None else chunk.id
        ids.add(name)
        spool.add(Passage(name, chunk.text, chunk.title, attributes))
        counts.oversize += chunk.oversize
        _count(counts, provider)
        if provider:
            counts.rules[rule] += 1


def _passages(
    one: Found, counts: _Counts, ids: set[str], spool: Spool, named: Named | None, limits: Limits
) -> bool:
    """Take the passages of a file, all or none; return whether it was read."""
    try:
        with _on_disk(one, limits) as path:
            unread: set[str] = set()
            new = [_name(passage.id, one.address, named) for passage in passage_files.read(path, unread)]
            if repeated := next((name for name in new if name in ids), ""):
                raise UnreadableError(f"repeats the id {repeated!r} of another file")
            for name, passage in zip(new, passage_files.read(path), strict=True):
                spool.add(replace(passage, id=name))
                _count(counts, passage.provider)
    except ReadError as exc:
        place = "" if exc.line is None else f"line {exc.line} "
        counts.skipped.append(Skipped(one.address, place + exc.message))
        return False
    except UnreadableError as exc:
        counts.skipped.append(Skipped(one.address, str(exc), isinstance(exc, MissingError)))
        return False
    ids.update(new)
    counts.files += 1
    if unread:
        counts.notes.append(Skipped(one.address, passage_files.unread_shown(unread)))
    return True


def _data_set(
    one: Found,
    records: Records,
    counts: _Counts,
    ids: set[str],
    spool: Spool,
    attribution: Attribution,
    named: Named | None,
    limits: Limits,
) -> bool:
    """Take the passages of a data set, all that fit or none; return whether it was read."""
    new: set[str] = set()
    left_out: dict[str, list[str]] = {}
    with Spool() as own:
        try:
            for record in records(limits.passages):
                passage = replace(record, attributes=attribution.of_record(record))
                try:
                    checks.passage("", passage)
                except InvalidField as exc:
                    left_out.setdefault(str(exc.field).lstrip("."), []).append(record.id)
                    continue
                name = _name(passage.id, one.address, named)
                if name in ids or name in new:
                    raise UnreadableError(f"repeats the id {name!r}")
                new.add(name)
                own.add(replace(passage, id=name))
        except UnreadableError as exc:
            counts.skipped.append(Skipped(one.address, str(exc)))
            return False
        for passage in own:
            spool.add(passage)
            _count(counts, passage.provider)
    ids |= new
    counts.files += 1
    for field_, names in left_out.items():
        reason = f"{len(names):,} documents are left out, such as {names[0]!r}: {field_} is empty or too long"
        counts.notes.append(Skipped(one.address, reason))
    return True


def _name(own: str, address: str, named: Named | None) -> str:
    return own if named is None else named(address, own)


def _aside(one: Found, path: Path, limits: Limits, most: int) -> Found:
    """Return a file whose bytes are held in memory as one of the disk, or why it has too many for that."""
    data = one.fetch(limits.file_bytes) if one.fetch is not None else b""
    if len(data) > most:
        return Found(path, one.address, "is of an archive that packs too many passages: send it as a file")
    path.write_bytes(data)
    return Found(path, one.address)


@contextmanager
def _on_disk(one: Found, limits: Limits) -> Iterator[Path]:
    """Yield the path of a file; what is elsewhere is fetched into a temporary file."""
    if one.fetch is None:
        yield one.path
        return
    data = one.fetch(limits.file_bytes)
    with tempfile.TemporaryDirectory(prefix="evenmesh-") as folder:
        path = Path(folder) / "passages"
        path.write_bytes(data)
        yield path


def _count(counts: _Counts, provider: str) -> None:
    if provider:
        counts.providers[provider] += 1
    else:
        counts.without_provider += 1


def parts(passages: Iterable[Passage], most: int) -> Iterator[list[Passage]]:
    """Yield passages in parts of at most ``most``."""
    part: list[Passage] = []
    for passage in passages:
        part.append(passage)
        if len(part) == most:
            yield part
            part = []
    if part:
        yield part
