"""Gather files of a stranger in a process of its own: ``python -m evenmesh_documents.uploads.process``.

A service that takes uploads starts it, so that reading and splitting take no turn of its event loop, and
whatever a file does ends with this process. It reads a job (:class:`GatheringJob`, JSON) from its input. It
writes what it has done to its output, and last the messages of the ingest, each when the one before was
taken. It stops, with the processes that parse, when its input ends: close the input to stop it.

A message is framed by :mod:`evenmesh_documents.parsing.wire`. It begins with its kind: after :data:`EVENT` it
is JSON, after :data:`REQUEST` the number of passages (:data:`COUNT`) and a serialized ``IngestRequest``.
"""

import contextlib
import itertools
import json
import os
import resource
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from evenmesh.types.passage import Passage
from evenmesh_documents import counting
from evenmesh_documents.attribution import DEFAULT_PROVIDER, DOCUMENT, Attribution, Rule
from evenmesh_documents.gathering import Gathered, Skipped, Spool, gather
from evenmesh_documents.limits import Limits
from evenmesh_documents.origins.found import Found
from evenmesh_documents.parsing import wire
from evenmesh_documents.parsing.parsers import ParserError, Parsers
from evenmesh_documents.splitting import Splitting

EVENT: Final = b"e"
"""Kind of a message that says what was done: JSON with one of ``reading``, ``read`` and ``failed``."""
REQUEST: Final = b"r"
"""Kind of a message that holds a serialized ``IngestRequest``."""
COUNT: Final = struct.Struct(">I")
MOST_JOB_BYTES: Final = 16 << 20
"""Largest job. Bytes."""
INVALID_RULE: Final = "INVALID_RULE"
"""Reason of a job that failed for a rule of what ``failed`` names."""
MOST_LISTED: Final = 1_000
"""Most providers, and most files of a kind, that are listed; the number of all is said beside them."""

_WORDS: Final = 110
_TOKENS: Final = 128
_NICE: Final = 10
_SAYS_EVERY_S: Final = 0.2
_EXPENDABLE: Final = "1000"
"""Score by which Linux chooses what to end where memory runs out: this process before the service."""


@dataclass(frozen=True, slots=True)
class GatheringJob:
    """What to gather.

    Attributes:
        files: path, address, and why it is not read, of each file; the last is empty for one that is.
        provider: rules for the provider, as :meth:`Rule.parse` reads them; empty for the default ones.
        attributes: name and rule of each other attribute.
        base_url: what stands before addresses.
        size: most that a passage has, in tokens or words; 0 for the default.
        overlap: most that a passage repeats of the one before.
        tokenizer: ``bundled``, ``words``, or the path of a tokenizer.json; empty for the bundled one where it
            is installed, and else words.
        limits: bounds of one file, by the name of a field of :class:`Limits`.
        text_bytes: most of all passages together, and as much of files of passages in archives. Bytes.
        collection: collection of the ingest; empty to make none.
        create: whether the ingest creates the collection where it is missing.
    """

    files: Sequence[tuple[str, str, str]]
    provider: Sequence[str] = ()
    attributes: Sequence[tuple[str, str]] = ()
    base_url: str = ""
    size: int = 0
    overlap: int = 0
    tokenizer: str = ""
    limits: Mapping[str, int] = field(default_factory=dict)
    text_bytes: int = 1 << 30
    collection: str = ""
    create: bool = True

    def attribution(self) -> Attribution:
        """Return the rules for attributes.

        Raises:
            InvalidRuleError: one is no rule.
        """
        rules = _rules("provider", self.provider) or DEFAULT_PROVIDER
        others = _rules("attribute", [rule for _, rule in self.attributes])
        names = (name for name, _ in self.attributes)
        return Attribution(rules, tuple(zip(names, others, strict=True)), self.base_url)

    def splitting(self, apart: str) -> Splitting:
        """Return how documents are split.

        Raises:
            ValueError: a value is outside its range, or the tokenizer cannot be read.
            ModuleNotFoundError: what reads the tokenizer is not installed.
        """
        by, size = _counts_by(self.tokenizer), self.size or default_size(self.tokenizer)
        if by == "words":
            return Splitting(size, self.overlap, apart=apart)
        count = counting.bundled() if by == "bundled" else counting.tokens(Path(by))
        return Splitting(size, self.overlap, count, apart)


class InvalidRuleError(ValueError):
    """Raised for what is no rule, with the name of what it is given for: ``provider`` or ``attribute``."""


def _rules(name: str, texts: Iterable[str]) -> tuple[Rule, ...]:
    try:
        return tuple(map(Rule.parse, texts))
    except ValueError:
        raise InvalidRuleError(name) from None


def default_size(tokenizer: str) -> int:
    """Return the most that a passage has where a job with this tokenizer says nothing; in tokens or words."""
    return _WORDS if _counts_by(tokenizer) == "words" else _TOKENS


def _counts_by(tokenizer: str) -> str:
    return tokenizer or ("bundled" if counting.bundled_is_there() else "words")


class TooMuchTextError(Exception):
    """Raised where the passages of a job have more text than it may have."""


class _BoundedSpool(Spool):
    """A spool that takes so many bytes."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    def add(self, passage: Passage) -> None:
        self._left -= len(passage.text.encode()) + len(passage.title.encode())
        self._left -= sum(len(one.encode()) for pair in passage.attributes.items() for one in pair)
        if self._left < 0:
            raise TooMuchTextError
        super().add(passage)


def main() -> None:
    """Do one job."""
    incoming, outgoing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # what a library prints is no message
    os.nice(_NICE)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_EXPENDABLE, encoding="ascii")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        values = json.loads(wire.receive(incoming, MOST_JOB_BYTES))
    except wire.StreamError:
        return
    job = GatheringJob(**values)
    limits = Limits(**job.limits)
    if sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, hard))
    try:
        with Parsers(1, limits) as parsers, _BoundedSpool(job.text_bytes) as spool:
            _stop_with(incoming, parsers)
            _run(job, parsers, spool, outgoing)
    except TooMuchTextError:
        _say(
            outgoing, failed=f"the files hold more than {job.text_bytes:,} bytes of text", reason="TOO_LARGE"
        )
    except InvalidRuleError as error:
        _say(outgoing, failed=str(error), reason=INVALID_RULE)
    except MemoryError:
        _say(outgoing, failed="the files need more memory than there is to read them", reason="TOO_LARGE")
    except ParserError:
        _say(outgoing, failed="no process can be started that reads files", reason="NO_PARSER")
    except BrokenPipeError:
        return
    except Exception as exc:  # noqa: BLE001 - whatever it is, who started this process is informed
        _say(outgoing, failed=f"the files could not be read ({type(exc).__name__})", reason="READING_FAILED")


def _run(job: GatheringJob, parsers: Parsers, spool: Spool, outgoing: IO[bytes]) -> None:
    attribution = job.attribution()
    splitting = job.splitting(attribution.column)
    said_at = -_SAYS_EVERY_S

    def on_file(done: int, total: int) -> None:
        nonlocal said_at
        now = time.monotonic()
        if done == total or now - said_at >= _SAYS_EVERY_S:
            said_at = now
            _say(outgoing, reading={"done": done, "files": total})

    gathered = gather(
        [Found(Path(path), address, reason) for path, address, reason in job.files],
        parsers,
        spool,
        splitting=splitting,
        attribution=attribution,
        on_file=on_file,
        aside_bytes=job.text_bytes,
    )
    parsers.close()
    _say(outgoing, read=summary(gathered, spool, splitting))
    if job.collection and len(spool):
        from evenmesh import ingest

        for request in ingest.requests(spool, job.collection, create=job.create):
            wire.send(outgoing, REQUEST, COUNT.pack(len(request.passages)), request.SerializeToString())


def summary(gathered: Gathered, passages: Iterable[Passage], splitting: Splitting) -> dict[str, Any]:
    """Return what was read, for people and programs, within bounds: at most 1,000 entries of each list.

    Args:
        gathered: what was read.
        passages: the passages, of which each provider's first is named.
        splitting: how they were split.
    """
    shown = dict(itertools.islice(gathered.providers.items(), MOST_LISTED))
    first: dict[str, str] = {}
    for one in passages:
        if len(first) == len(shown):
            break
        if one.provider in shown:
            first.setdefault(one.provider, one.attributes.get(DOCUMENT) or one.id)
    same = gathered.duplicates
    return {
        "files": gathered.files,
        "passages": gathered.passages,
        "size": splitting.size,
        "unit": splitting.unit,
        "numProviders": len(gathered.providers),
        "providers": [
            {"name": name, "passages": count, "document": first.get(name, "")}
            for name, count in shown.items()
        ],
        "rules": dict(gathered.rules),
        "withoutProvider": gathered.without_provider,
        "oversize": gathered.oversize,
        "numSkipped": len(gathered.skipped),
        "skipped": _listed(gathered.skipped),
        "numNotes": len(gathered.notes),
        "notes": _listed(gathered.notes),
        "numEmpty": len(gathered.empty),
        "empty": list(gathered.empty[:MOST_LISTED]),
        "duplicates": {"dropped": same.dropped, "mirrored": same.mirrored, "near": same.near},
    }


def _listed(files: Sequence[Skipped]) -> list[dict[str, str]]:
    return [{"document": one.address, "reason": one.reason} for one in files[:MOST_LISTED]]


def _say(outgoing: IO[bytes], **event: object) -> None:
    wire.send(outgoing, EVENT, json.dumps(event).encode())


def _stop_with(incoming: IO[bytes], parsers: Parsers) -> None:
    """End this process and those that parse when nobody holds the other end of the input any more."""

    def wait() -> None:
        while incoming.read(1):
            pass
        parsers.close()
        os._exit(1)

    threading.Thread(target=wait, name="input", daemon=True).start()


def job_bytes(job: GatheringJob) -> bytes:
    """Return a job as its process reads it."""
    body = json.dumps(asdict(job)).encode()
    return wire.LENGTH.pack(len(body)) + body


if __name__ == "__main__":
    main()
    os._exit(0)  # whatever state a library is in, nothing of it matters any more
