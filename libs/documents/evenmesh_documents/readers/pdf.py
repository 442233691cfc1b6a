"""PDF: the text of its pages; headings by its bookmarks, or by the size of the letters."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pypdfium2
import pypdfium2.raw as pdfium

from evenmesh_documents.document import Document, Kind, UnreadableError
from evenmesh_documents.outline import Outline
from evenmesh_documents.source import Ocr, Source

_MAGIC: Final = b"%PDF-"
_MAGIC_WITHIN: Final = 1_024
_LARGER: Final = 1.15
"""A heading's letters are this much larger than those of most of the text."""
_MAX_HEADING_LINES: Final = 3
_GAP: Final = 1.7
"""Distance of two lines, of the height of a line, at which the next paragraph begins."""
_REPEATED_PAGES: Final = 3
_OCR_SCALE: Final = 2.0
"""Pixels of a page that is recognized, of 1/72 inch."""
_NUMBER: Final = re.compile(r"(?:page\s*)?[-–]?\s*\d+\s*(?:(?:of|/)\s*\d+\s*)?[-–]?", re.IGNORECASE)
_DIVIDED: Final = re.compile(r"\x02\s*")
_DIGITS: Final = re.compile(r"\d+")
_ENDS: Final = re.compile(r"[.!?:;…][\"'”’)\]]*$")
_ITEM: Final = re.compile(r"(?:[•‣▪●◦*–-]|\d{1,3}[.)])\s")
_DATE: Final = re.compile(r"D:(\d{4})(\d{2})?(\d{2})?")


class _Line(NamedTuple):
    """A line of a page.

    Attributes:
        text: what it says.
        page: from 1.
        top: its upper end. Points, from the bottom of the page.
        height: height of its first letter's box. Points.
        size: that height to half a point: sizes that differ less are one. Points.
    """

    text: str
    page: int
    top: float
    height: float
    size: float


def read(source: Source) -> Document:
    """Read the text of a PDF; pages without any are recognized by OCR if it is given, or noted.

    Numbers of pages, and lines that are at the top or at the bottom of most pages, are left out. A paragraph
    that goes on on the next page stays one. Tables are read as text.

    Raises:
        UnreadableError: it is no PDF, is encrypted, damaged, or beyond a limit.
    """
    if _MAGIC not in source.data[:_MAGIC_WITHIN]:
        raise UnreadableError("is not a PDF")
    try:
        pdf = pypdfium2.PdfDocument(source.data)
    except pypdfium2.PdfiumError as exc:
        reason = getattr(exc, "err_code", None)
        if reason in (pdfium.FPDF_ERR_PASSWORD, pdfium.FPDF_ERR_SECURITY):
            raise UnreadableError("is encrypted") from exc
        raise UnreadableError("is damaged") from exc
    try:
        source.limits.check_pages(len(pdf), "pages")
        return _read(source, pdf)
    finally:
        pdf.close()


def _read(source: Source, pdf: Any) -> Document:
    pages: list[list[_Line]] = []
    empty: list[int] = []
    broken: list[int] = []
    characters = 0
    for index in range(len(pdf)):
        try:
            page = pdf[index]
        except pypdfium2.PdfiumError:
            broken.append(index + 1)
            continue
        lines = list(_lines(page, index + 1, source.limits.characters - characters))
        if not lines and source.ocr is not None:
            lines = _recognized(page, index + 1, source.ocr)
        if not lines:
            empty.append(index + 1)
        characters += sum(len(line.text) for line in lines)
        if characters > source.limits.characters:
            raise UnreadableError(f"has more than {source.limits.characters:,} characters of text")
        pages.append(lines)
        page.close()
    outline = Outline(source.limits.characters)
    _structured(_without_margins(pages), _bookmarks(pdf), outline)
    notes = [f"{what}: {_numbers(where)}" for what, where in _notes(empty, broken) if where]
    blocks = outline.blocks()
    if not blocks:
        raise UnreadableError(
            "has no text on its pages; it may be scanned: give it OCR" if empty else "has no text"
        )
    found = _DATE.match(_stated(partial(pdf.get_metadata_value, "CreationDate")))
    return Document(
        source.address,
        blocks,
        title=_stated(partial(pdf.get_metadata_value, "Title")).strip() or outline.first_heading,
        author=_stated(partial(pdf.get_metadata_value, "Author")).strip(),
        date="-".join(part for part in found.groups() if part) if found else "",
        notes=tuple(notes),
    )


def _notes(empty: list[int], broken: list[int]) -> tuple[tuple[str, list[int]], ...]:
    return ("pages without text (scanned?)", empty), ("damaged pages", broken)


def _lines(page: Any, number: int, most: int) -> Iterator[_Line]:
    """Yield the lines of a page, in the order of the file."""
    text_page = page.get_textpage()
    try:
        if text_page.count_chars() > most:
            raise UnreadableError("has too many characters of text")
        at = 0
        handle, box = text_page.raw, pdfium.FS_RECTF()
        text = text_page.get_text_range()
        # PDFium counts units of UTF-16: two for an emoji, or a letter of mathematics.
        length = len if text.isascii() else _units
        for piece in text.split("\r\n"):
            if first := piece.lstrip():
                top, height = _place(handle, at + length(piece) - length(first), box)
                said = piece.strip(" \t").replace("\ufffe", "\x02")
                yield _Line(said, number, top, height, round(height * 2) / 2)
            at += length(piece) + 2
    finally:
        text_page.close()


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _place(text_page: Any, at: int, box: Any) -> tuple[float, float]:
    """Return the upper end of a character and the height of its box; 0 where it has none. Points."""
    index = pdfium.FPDFText_GetCharIndexFromTextIndex(text_page, at)
    if not pdfium.FPDFText_GetLooseCharBox(text_page, index, box):
        return 0.0, 0.0
    top = box.top
    return top, top - box.bottom


def _recognized(page: Any, number: int, ocr: Ocr) -> list[_Line]:
    """Return the lines that OCR finds on a page; an empty line is kept as a distance."""
    image = page.render(scale=_OCR_SCALE).to_numpy()
    lines, top = [], 0.0
    for line in ocr(image).splitlines():
        top -= 1.0
        if line.strip():
            lines.append(_Line(line.strip(), number, top, 1.0, 1.0))
    return lines


def _without_margins(pages: Sequence[Sequence[_Line]]) -> list[list[_Line]]:
    """Return the lines without numbers of pages and running titles, which are no part of the text."""
    ends: Counter[str] = Counter()
    for lines in pages:
        ends.update({_DIGITS.sub("#", lines[at].text) for at in (0, -1) if lines})
    most = max(_REPEATED_PAGES, (sum(bool(lines) for lines in pages) + 1) // 2)
    kept = []
    for page in pages:
        lines = list(page)
        for at in (0, -1):
            if len(lines) > 1 and (
                _NUMBER.fullmatch(lines[at].text) or ends[_DIGITS.sub("#", lines[at].text)] >= most
            ):
                del lines[at]
        kept.append(lines)
    return kept


def _bookmarks(pdf: Any) -> dict[int, list[tuple[int, str]]]:
    """Return level and title of the bookmarks, by the page that they lead to."""
    found: dict[int, list[tuple[int, str]]] = {}
    for bookmark in pdf.get_toc():
        destination = bookmark.get_dest()
        page = None if destination is None else destination.get_index()
        if page is not None:
            found.setdefault(page + 1, []).append((bookmark.level + 1, _stated(bookmark.get_title)))
    return found


def _stated(text: Callable[[], str]) -> str:
    """Return a text that a PDF states; empty where it is damaged, as one that was cut in a letter is."""
    try:
        return text()
    except UnicodeDecodeError:
        return ""


def _structured(
    pages: Sequence[Sequence[_Line]], bookmarks: dict[int, list[tuple[int, str]]], outline: Outline
) -> None:
    levels = {} if bookmarks else _sizes([line for lines in pages for line in lines])
    paragraph: list[_Line] = []

    def end() -> None:
        if paragraph:
            outline.add(Kind.PARAGRAPH, _joined(paragraph), paragraph[0].page, paragraph[-1].page)
            paragraph.clear()

    for lines in pages:
        if not lines:
            continue
        page = lines[0].page
        waiting = bookmarks.get(page, [])
        titles = {_normal(line.text) for line in lines} if waiting else set()
        for level, title in waiting:
            if _normal(title) not in titles:
                end()
                outline.heading(level, title, page)
        by_title = {_normal(title): level for level, title in waiting}
        at = 0
        while at < len(lines):
            line = lines[at]
            if by_title and (known := by_title.pop(_normal(line.text), None)) is not None:
                end()
                outline.heading(known, line.text, page)
            elif (found := levels.get(line.size)) is not None:
                end()
                together = _same_size(lines[at : at + _MAX_HEADING_LINES])
                outline.heading(found, _joined(together), page)
                at += len(together) - 1
            else:
                if paragraph and _begins(paragraph[-1], line):
                    end()
                paragraph.append(line)
            at += 1
    end()


def _sizes(lines: Sequence[_Line]) -> dict[float, int]:
    """Return the levels of headings by the height of their letters."""
    counts: Counter[float] = Counter()
    for line in lines:
        counts[line.size] += len(line.text)
    if not counts:
        return {}
    most = counts.most_common(1)[0][0]
    larger = sorted((size for size in counts if size >= most * _LARGER and size > 0), reverse=True)
    return {size: level for level, size in enumerate(larger, start=1)}


def _same_size(lines: Sequence[_Line]) -> list[_Line]:
    """Return the first line and those that follow it in its size, as a heading of several lines does."""
    first = lines[0]
    together = [first]
    for line in lines[1:]:
        if line.size != first.size or _begins(together[-1], line):
            break
        together.append(line)
    return together


def _begins(before: _Line, line: _Line) -> bool:
    """Return whether a line begins a paragraph."""
    if before.page != line.page:
        # A paragraph goes on on the next page where its sentence does.
        return bool(_ENDS.search(before.text)) or not (
            before.text.endswith("\x02") or line.text[:1].islower()
        )
    if not 0.85 <= (line.height or 1) / (before.height or 1) <= 1 / 0.85:
        return True
    distance = before.top - line.top
    return distance > _GAP * max(line.height, before.height) or distance < -line.height


def _joined(lines: Sequence[_Line]) -> str:
    """Return the text of lines; an item of a list keeps its line, a divided word is put together."""
    text = ""
    for line in lines:
        if text.endswith("\x02"):
            text = text[:-1] + line.text
        elif text:
            said = line.text
            # Nearly all lines begin with a letter, and no item does.
            text += ("\n" if not said[0].isalpha() and _ITEM.match(said) else " ") + said
        else:
            text = line.text
    return _DIVIDED.sub("", text) if "\x02" in text else text


def _normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def _numbers(pages: Sequence[int]) -> str:
    """Return numbers in order, with ranges: ``1, 3–7``."""
    shown: list[str] = []
    first = last = pages[0]
    for page in [*pages[1:], -1]:
        if page == last + 1:
            last = page
            continue
        shown.append(str(first) if first == last else f"{first}–{last}")
        first = last = page
    return ", ".join(shown)
