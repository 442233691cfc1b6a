"""Read files of strangers in processes of their own, of which each has bounds."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Final, Self

from evenmesh_documents.document import Document, MissingError, UnreadableError
from evenmesh_documents.limits import Limits
from evenmesh_documents.parsing import wire
from evenmesh_documents.readers import reader_of, without_reader
from evenmesh_documents.source import Fetch

_MODULE: Final = "evenmesh_documents.parsing.process"
_BYTES_PER_CHARACTER: Final = 12
"""Most bytes of a character in a reply, where JSON escapes halves of a pair; headings stand at each block."""
_GONE_WITHIN_S: Final = 5.0
_LEAST_REPLY: Final = 64 << 20
_MOST_FAILURE: Final = 65_536
_AHEAD: Final = 2
"""Files that each process is ahead of who takes the documents."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What became of a file.

    Attributes:
        address: its address.
        document: what was read; None where it could not be.
        reason: why it could not be read; empty where it was.
        missing: whether it is not there any more.
    """

    address: str
    document: Document | None
    reason: str = ""
    missing: bool = False


class ParserError(RuntimeError):
    """Raised where no process can be started that reads files."""


class Parsers:
    """Processes that read files, each one file at a time.

    A file that ends its process, or exceeds a bound, is lost alone: the next file gets a new process.

    Args:
        processes: how many read at the same time, 1 or more.
        limits: bounds of one file.
        ocr: function that recognizes text, as ``module:function``; empty for none. The process imports it.
    """

    def __init__(self, processes: int = 1, limits: Limits | None = None, *, ocr: str = "") -> None:
        if processes < 1:
            raise ValueError(f"processes must be at least 1, is {processes}")
        self._limits = Limits() if limits is None else limits
        self._ocr = ocr
        self._processes = processes
        self._idle: deque[_Parser] = deque()
        self._started: set[_Parser] = set()
        self._closed = False
        self._pool = ThreadPoolExecutor(processes, thread_name_prefix="documents")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def limits(self) -> Limits:
        """Return the bounds of one file."""
        return self._limits

    @property
    def running(self) -> int:
        """Return how many processes there are, at work or idle."""
        return len(self._started)

    def close(self) -> None:
        """End the processes; files that are being read are given up."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for parser in list(self._started):
            parser.end()
        self._pool.shutdown(wait=True)
        for parser in list(self._started):
            parser.end()
        self._started.clear()

    def read_all(
        self, files: Iterable[tuple[Path | Fetch, str] | tuple[Path | Fetch, str, str]]
    ) -> Iterator[Parsed]:
        """Yield what became of each file, in their order; a few are read ahead.

        Args:
            files: what :meth:`read` takes of each: path or what fetches the bytes, address, and an ending.

        Raises:
            ParserError: no process can be started, such as one with this OCR.
        """
        waiting: deque[Future[Parsed]] = deque()
        for one in files:
            waiting.append(self._pool.submit(self.read, *one))
            if len(waiting) >= self._processes * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def read(self, place: Path | Fetch, address: str, ending: str = "") -> Parsed:
        """Read one file.

        Args:
            place: its path, or what fetches its bytes.
            address: its address.
            ending: says how it is read, where the address does not.

        Raises:
            ParserError: no process can be started, such as one with this OCR.
        """
        # A name that begins with a dot has no ending.
        named = f"{address}page{ending}" if ending else address
        try:
            if reader_of(named) is None:
                raise UnreadableError(without_reader(named))
            most = self._limits.file_bytes
            data = content(place, most) if isinstance(place, Path) else place(most)
            return Parsed(address, replace(self._document(data, named), address=address))
        except UnreadableError as exc:
            return Parsed(address, None, str(exc), missing=isinstance(exc, MissingError))

    def _document(self, data: bytes, address: str) -> Document:
        if self._closed:
            raise UnreadableError("was given up")
        try:
            parser = self._idle.pop()
        except IndexError:
            parser = _Parser(self._limits, self._ocr)
            self._started.add(parser)
        try:
            return parser.document(data, address)
        finally:
            if parser.usable and not self._closed:
                self._idle.append(parser)
            else:
                parser.end()
                self._started.discard(parser)


class _Parser:
    """One process that reads files, one after the other."""

    def __init__(self, limits: Limits, ocr: str) -> None:
        self._limits = limits
        words = [sys.executable, "-m", _MODULE, json.dumps(asdict(limits)), *([ocr] if ocr else [])]
        # Ctrl-C is for the process that it was typed to: that one ends this one.
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.usable = True
        # Its first message is empty, or says why it cannot read anything.
        try:
            failure = wire.receive(self._pipe(self._process.stdout), _MOST_FAILURE).decode(errors="replace")
        except wire.StreamError:
            failure = f"it ended with status {self._process.wait()}"
        if failure:
            self.end()
            raise ParserError(f"no process can be started that reads files: {failure}")

    @staticmethod
    def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
        if stream is None:
            raise RuntimeError("a parser has no pipes")
        return stream

    def document(self, data: bytes, address: str) -> Document:
        """Return what the process reads of a file.

        Raises:
            UnreadableError: it cannot be read, or its parser ended over it.
        """
        incoming, outgoing = self._pipe(self._process.stdin), self._pipe(self._process.stdout)
        late = threading.Event()
        timer = threading.Timer(self._limits.wall_s, self._too_late, (late,))
        timer.daemon = True
        timer.start()
        most = max(_LEAST_REPLY, self._limits.characters * _BYTES_PER_CHARACTER)
        try:
            wire.send(incoming, address.encode())
            wire.send(incoming, data)
            reply = json.loads(wire.receive(outgoing, most))
            self.usable = "last" not in reply and _reads_on(outgoing)
            if "unreadable" in reply:
                raise UnreadableError(str(reply["unreadable"]))
            return wire.unpacked(reply)
        except (wire.StreamError, OSError) as exc:
            self.usable = False
            raise UnreadableError(self._ended(late)) from exc
        except UnreadableError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
            self.usable = False
            raise UnreadableError("ended its parser, which sent an invalid reply") from exc
        finally:
            timer.cancel()

    def end(self) -> None:
        """End the process."""
        self.usable = False
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                # What was not sent yet cannot be sent any more.
                with contextlib.suppress(OSError):
                    stream.close()

    def _too_late(self, late: threading.Event) -> None:
        late.set()
        self._process.kill()

    def _ended(self, late: threading.Event) -> str:
        """Return why the process ended."""
        if late.is_set():
            return f"takes longer than {self._limits.wall_s:,} s to read"
        # It answers no more: either it is gone already, or it must go.
        try:
            status = self._process.wait(timeout=_GONE_WITHIN_S)
        except subprocess.TimeoutExpired:
            return "ended its parser"
        if status == -getattr(signal, "SIGXCPU", 0):
            return f"takes more than {self._limits.cpu_s:,} s of processor time to read"
        if status < 0:
            return f"ended its parser ({signal.Signals(-status).name})"
        return f"ended its parser (status {status})"


def _reads_on(outgoing: IO[bytes]) -> bool:
    """Return whether a process reads another file: after its reply it says so, or ends."""
    try:
        return not wire.receive(outgoing, _MOST_FAILURE)
    except (wire.StreamError, OSError):
        return False


def descriptor_of(path: Path, most: int) -> IO[bytes]:
    """Return an open file; a link is not followed.

    Raises:
        UnreadableError: it cannot be opened, is no file, or is larger than ``most`` bytes.
    """
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        stream = open(os.open(path, flags), "rb")  # noqa: PTH123, SIM115 - by descriptor; the caller closes it
        status = os.fstat(stream.fileno())
    except OSError as exc:
        raise UnreadableError(f"cannot be opened: {exc.strerror}") from exc
    reason = ""
    if not stat.S_ISREG(status.st_mode):
        reason = "is not a file"
    elif status.st_size > most:
        reason = f"has {status.st_size:,} bytes, at most {most:,} are read"
    if reason:
        stream.close()
        raise UnreadableError(reason)
    return stream


def content(path: Path, most: int) -> bytes:
    """Return the bytes of a file; a link is not followed.

    Raises:
        UnreadableError: it cannot be opened, is no file, or is larger than ``most`` bytes.
    """
    with descriptor_of(path, most) as stream:
        try:
            data = stream.read(most + 1)
        except OSError as exc:
            raise UnreadableError(f"cannot be read: {exc.strerror}") from exc
    if len(data) > most:
        raise UnreadableError(f"has more than {most:,} bytes")
    return data
