"""Ingest of documents beside the bare parsers: processor time per page, and memory by the number of pages."""

from __future__ import annotations

import io
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import table

HEADING: Final = "Reading documents beside the bare parsers"
PAGES: Final = 20
"""Pages of a document."""
_PARAGRAPHS: Final = 5
_WORDS: Final = 70
"""Words of a paragraph: a page has 350."""
_SENTENCE: Final = 14
_READERS: Final = 1
"""Processes that read: as many as the bare parsers are in, which import their libraries once, too."""
_DOCS: Final = Path(__file__).resolve().parents[1] / "docs"

Content = list[tuple[str, list[str]]]
"""Heading and paragraphs of each page."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run took.

    Attributes:
        cpu_s: processor time of the process and of the readers that it started. Seconds.
        peak_mib: most memory of the process. MiB.
        reader_mib: most memory of a reader's process; 0 without any. MiB.
        passages: passages that were made; 0 of a bare parser.
    """

    cpu_s: float
    peak_mib: float
    reader_mib: float = 0.0
    passages: int = 0


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured.

    Attributes:
        kinds: of each kind and side the costs of the rounds.
        grown: by pages of all kinds, the cost of each side.
        pages: pages of each kind.
    """

    kinds: dict[str, list[list[Cost]]]
    grown: dict[int, list[Cost]]
    pages: int


def measure(*, pages: int = 500, grown: Sequence[int] = (1_000, 10_000), rounds: int = 3) -> Measured:
    """Measure each kind, the sides in turn in processes of their own, and then all kinds by size."""
    kinds, sizes = {}, {}
    with TemporaryDirectory(prefix="evenmesh-bench-") as base:
        for kind in KINDS:
            folder = Path(base) / kind
            _make(folder, pages, (kind,))
            runs = [[_in_process(side, folder) for side in _SIDES] for _ in range(rounds)]
            kinds[kind] = [list(side) for side in zip(*runs, strict=True)]
        for size in grown:
            folder = Path(base) / f"all-{size}"
            _make(folder, size, tuple(KINDS))
            sizes[size] = [_in_process(side, folder) for side in _SIDES]
    return Measured(kinds, sizes, pages)


def section(measured: Measured) -> str:
    """Return what was measured as a section of docs/science/benchmarks.md."""
    kinds = [_speeds(kind, measured.pages, costs) for kind, costs in measured.kinds.items()]
    for pages, costs in measured.grown.items():
        kinds.append(_speeds(f"all, {pages:,} pages", pages, [[one] for one in costs]))
    grown = [
        {
            "pages": f"{pages:,}",
            "passages": f"{whole.passages:,}",
            "CPU s": f"{whole.cpu_s:.0f}",
            "the ingest": f"{whole.peak_mib:.0f} MiB",
            "a reader": f"{whole.reader_mib:.0f} MiB",
        }
        for pages, (_, _, whole) in measured.grown.items()
    ]
    rounds = len(next(iter(measured.kinds.values()))[0])
    return f"""Documents of {PAGES} pages of {_PARAGRAPHS * _WORDS} words, made by the tests' own makers.
Pages per second of processor time, of all processes of a side together and with their start;
{measured.pages:,} pages of each kind, medians of {rounds} rounds, the sides in turn.
The target of *read / bare* is ≥ 0.7.
*Bare* takes the whole text out of the same bytes with the library that the reader uses, in one process.
*Read* is `Parsers`: {_READERS} process with bounds finds headings, lists and tables, and sends the document.
*Ingest* goes on to passages by the bundled tokenizer, compared with all others and written to a file.
The bare parsers of HTML, Markdown, EPUB and mail return a text without structure and take little for it;
whatever looks for headings takes several times as much.

{table(kinds)}

Ingest of all kinds in equal parts; most memory (resident) of the process that ingests, and of a reader.
The system counts what the process had that started each, so these are upper bounds.

{table(grown)}"""


def _speeds(name: str, pages: int, costs: Sequence[Sequence[Cost]]) -> dict[str, str]:
    bare, read, whole = ([one.cpu_s for one in side] for side in costs)
    return {
        "kind": name,
        "bare": f"{pages / median(bare):,.0f}",
        "read": f"{pages / median(read):,.0f}",
        "read / bare": f"{median(a / b for a, b in zip(bare, read, strict=True)):.2f}",
        "ingest": f"{pages / median(whole):,.0f}",
        "ingest / bare": f"{median(a / b for a, b in zip(bare, whole, strict=True)):.2f}",
    }


def contents(pages: int, seed: int) -> Content:
    """Return pages of words of our own documentation, in sentences."""
    rng = np.random.default_rng(seed)
    words = _vocabulary()
    drawn = rng.choice(words, size=(pages, _PARAGRAPHS, _WORDS // _SENTENCE, _SENTENCE))
    return [
        (
            f"Section {seed} {page}",
            [" ".join(" ".join(one).capitalize() + "." for one in said) for said in paragraphs.tolist()],
        )
        for page, paragraphs in enumerate(drawn)
    ]


@cache
def _vocabulary() -> NDArray[np.str_]:
    """Return words as often as the documentation has them."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(_DOCS.rglob("*.md")))
    return np.array(re.findall(r"\b[a-z]{1,20}\b", text))


def _pdf(content: Content) -> bytes:
    from tests.support import document_files as files

    pages = []
    for heading, paragraphs in content:
        lines = [(18.0, heading), (9.0, "")]
        for paragraph in paragraphs:
            words = paragraph.split()
            lines += [(9.0, " ".join(words[at : at + 14])) for at in range(0, len(words), 14)]
            lines.append((9.0, ""))
        pages.append(lines)
    return files.pdf(pages)


def _word(content: Content) -> bytes:
    from tests.support import document_files as files

    parts: list[tuple[str, object]] = []
    for heading, paragraphs in content:
        parts += [("Heading 1", heading), *(("Normal", one) for one in paragraphs)]
    return files.word(parts)


def _html(content: Content) -> bytes:
    body = "".join(
        f"<h2>{heading}</h2>" + "".join(f"<p>{one}</p>" for one in paragraphs)
        for heading, paragraphs in content
    )
    page = f"<html><head><title>T</title></head><body><nav>Home</nav><main>{body}</main></body></html>"
    return page.encode()


def _markdown(content: Content) -> bytes:
    return "".join(
        f"## {heading}\n\n" + "".join(f"{one}\n\n" for one in paragraphs) for heading, paragraphs in content
    ).encode()


def _presentation(content: Content) -> bytes:
    from tests.support import document_files as files

    return files.presentation([(heading, paragraphs, "") for heading, paragraphs in content])


def _workbook(content: Content) -> bytes:
    from tests.support import document_files as files

    rows: dict[str, list[list[object]]] = {
        heading: [["Part", "Text"], *([at, one] for at, one in enumerate(paragraphs))]
        for heading, paragraphs in content
    }
    return files.workbook(rows)


def _book(content: Content) -> bytes:
    from tests.support import document_files as files

    return files.epub({f"{at}.xhtml": _html([one]).decode() for at, one in enumerate(content)})


def _mail(content: Content) -> bytes:
    from tests.support import document_files as files

    return files.mail("Subject", "\n\n".join(one for _, paragraphs in content for one in paragraphs))


def _bare_pdf(data: bytes) -> int:
    import pypdfium2

    document, size = pypdfium2.PdfDocument(data), 0
    for page in document:
        text = page.get_textpage()
        size += len(text.get_text_range())
        text.close()
        page.close()
    document.close()
    return size


def _bare_word(data: bytes) -> int:
    import docx

    return sum(len(one.text) for one in docx.Document(io.BytesIO(data)).paragraphs)


def _bare_html(data: bytes) -> int:
    from lxml import html

    return len(html.document_fromstring(data).text_content())


def _bare_markdown(data: bytes) -> int:
    from markdown_it import MarkdownIt

    return sum(len(one.content) for one in MarkdownIt("commonmark").enable("table").parse(data.decode()))


def _bare_presentation(data: bytes) -> int:
    from pptx import Presentation

    deck = Presentation(io.BytesIO(data))
    return sum(
        len(shape.text_frame.text) for slide in deck.slides for shape in slide.shapes if shape.has_text_frame
    )


def _bare_workbook(data: bytes) -> int:
    from openpyxl import load_workbook

    book = load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    return sum(
        len(str(cell))
        for sheet in book.worksheets
        for row in sheet.iter_rows(values_only=True)
        for cell in row
    )


def _bare_book(data: bytes) -> int:
    import zipfile

    with zipfile.ZipFile(io.BytesIO(data)) as book:
        return sum(_bare_html(book.read(one)) for one in book.namelist() if one.endswith(".xhtml"))


def _bare_mail(data: bytes) -> int:
    import email
    import email.policy

    body = email.message_from_bytes(data, policy=email.policy.default).get_body()
    return 0 if body is None else len(body.get_content())


Maker = Callable[[Content], bytes]
KINDS: Final[dict[str, tuple[str, Maker, Callable[[bytes], int]]]] = {
    "PDF": (".pdf", _pdf, _bare_pdf),
    "Word": (".docx", _word, _bare_word),
    "PowerPoint": (".pptx", _presentation, _bare_presentation),
    "Excel": (".xlsx", _workbook, _bare_workbook),
    "HTML": (".html", _html, _bare_html),
    "Markdown": (".md", _markdown, _bare_markdown),
    "EPUB": (".epub", _book, _bare_book),
    "mail": (".eml", _mail, _bare_mail),
}
"""Of each kind its ending, what makes a document, and the bare parser, which returns how long the text is."""


def _make(folder: Path, pages: int, kinds: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    for number in range(pages // PAGES):
        ending, maker, _ = KINDS[kinds[number % len(kinds)]]
        (folder / f"{number}{ending}").write_bytes(maker(contents(PAGES, number)))


def bare(folder: Path) -> int:
    """Take the text out of the files of a folder by the bare parsers; return 0 passages."""
    by_ending = {ending: parser for ending, _, parser in KINDS.values()}
    for path in sorted(folder.iterdir()):
        if by_ending[path.suffix](path.read_bytes()) < PAGES * _PARAGRAPHS * _WORDS:
            raise RuntimeError(f"{path.name}: the bare parser found too little text")
    return 0


def read(folder: Path) -> int:
    """Read the files of a folder; return 0 passages."""
    from evenmesh_documents import Parsers

    with Parsers(_READERS) as parsers:
        for one in parsers.read_all((path, path.name) for path in sorted(folder.iterdir())):
            if one.document is None:
                raise RuntimeError(f"{one.address}: {one.reason}")
    return 0


def ingested(folder: Path) -> int:
    """Make passages of the files of a folder; return how many."""
    from evenmesh_documents import Parsers, Splitting
    from evenmesh_documents.attribution import Attribution
    from evenmesh_documents.counting import bundled
    from evenmesh_documents.gathering import Spool, gather
    from evenmesh_documents.origins.found import find

    splitting = Splitting(128, 0, bundled())
    with Parsers(_READERS) as parsers, Spool() as spool:
        done = gather(
            list(find([str(folder)])), parsers, spool, splitting=splitting, attribution=Attribution()
        )
        if done.skipped:
            raise RuntimeError(f"{done.skipped[0].address}: {done.skipped[0].reason}")
        return done.passages


_SIDES: Final = (bare, read, ingested)


def _in_process(work: Callable[[Path], int], folder: Path) -> Cost:
    """Run a function in a process of its own; return what it cost."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(_run, work, folder).result()


def _run(work: Callable[[Path], int], folder: Path) -> Cost:
    began = list(_used())
    passages = work(folder)
    cpu_s = sum(_used()) - sum(began)
    own, children = (resource.getrusage(who).ru_maxrss / 1024 for who in _WHO)
    return Cost(cpu_s, own, children, passages)


_WHO: Final = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


def _used() -> Iterator[float]:
    for who in _WHO:
        used: Any = resource.getrusage(who)
        yield used.ru_utime + used.ru_stime
