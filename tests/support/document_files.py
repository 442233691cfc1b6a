"""Files of every kind that documents come in, as bytes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from email.message import EmailMessage
from typing import Final

PDF_PAGE: Final = 792


def pdf(
    pages: Sequence[Sequence[tuple[float, str]]],
    *,
    bookmarks: Sequence[tuple[str, int]] = (),
    info: Mapping[str, str] | None = None,
    encrypted: bool = False,
    small: str = "",
) -> bytes:
    """A PDF: of each page the size and text of its lines; the bookmarks with the page, from 1, that they lead to.

    An empty line begins a paragraph. An encrypted one has a password that nobody knows. Where ``small`` is
    given, all small letters are this one.
    """
    objects: list[bytes] = []

    def add(body: str | bytes) -> int:
        objects.append(body.encode("latin-1") if isinstance(body, str) else body)
        return len(objects)

    named = ""
    if small:
        said = small.encode("utf-16-be").hex()
        pairs = "".join(f"<{code:02x}> <{said}>\n" for code in range(ord("a"), ord("z") + 1))
        table = (
            "begincmap 1 begincodespacerange <00> <ff> endcodespacerange\n"
            f"26 beginbfchar\n{pairs}endbfchar endcmap"
        )
        stream = f"<< /Length {len(table)} >>\nstream\n{table}\nendstream"
        named = f"/ToUnicode {add(stream)} 0 R"
    font = add(f"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding {named} >>")
    # The catalogue, the tree of pages and the bookmarks name objects that follow.
    catalogue, tree, outlines = add(""), add(""), add("")
    kids = []
    for lines in pages:
        content, y = [], PDF_PAGE - 60.0
        for size, text in lines:
            y -= size * 1.2
            if text:
                said = text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
                content.append(f"BT /F1 {size} Tf 1 0 0 1 72 {y} Tm ({said}) Tj ET")
        shown = "\n".join(content).encode("cp1252")
        stream_id = add(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(shown), shown))
        kids.append(
            add(
                f"<< /Type /Page /Parent {tree} 0 R /MediaBox [0 0 612 {PDF_PAGE}] /Contents {stream_id} 0 R "
                f"/Resources << /Font << /F1 {font} 0 R >> >> >>"
            )
        )
    marks = [add("") for _ in bookmarks]
    for at, (title, page) in enumerate(bookmarks):
        after = f"/Next {marks[at + 1]} 0 R" if at + 1 < len(marks) else ""
        before = f"/Prev {marks[at - 1]} 0 R" if at else ""
        objects[marks[at] - 1] = (
            f"<< /Title ({title}) /Parent {outlines} 0 R {before} {after} /Dest [{kids[page - 1]} 0 R /Fit] >>"
        ).encode("latin-1")
    ends = f"/First {marks[0]} 0 R /Last {marks[-1]} 0 R" if marks else ""
    objects[outlines - 1] = f"<< /Type /Outlines {ends} /Count {len(marks)} >>".encode()
    objects[catalogue - 1] = f"<< /Type /Catalog /Pages {tree} 0 R /Outlines {outlines} 0 R >>".encode()
    listed = " ".join(f"{kid} 0 R" for kid in kids)
    objects[tree - 1] = f"<< /Type /Pages /Kids [{listed}] /Count {len(kids)} >>".encode()
    fields = "".join(f"/{name} ({value}) " for name, value in (info or {}).items())
    info_id = add(f"<< {fields}>>")
    trailer = f"/Size {len(objects) + 1} /Root {catalogue} 0 R /Info {info_id} 0 R /ID [<{'a1' * 16}> <{'a1' * 16}>]"
    if encrypted:
        key = add(f"<< /Filter /Standard /V 2 /R 3 /Length 128 /P -4 /O <{'5a' * 32}> /U <{'6b' * 32}> >>")
        trailer += f" /Encrypt {key} 0 R"
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    places = []
    for number, body in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for place in places:
        out.write(b"%010d 00000 n \n" % place)
    out.write(f"trailer\n<< {trailer} >>\nstartxref\n{start}\n%%EOF\n".encode())
    return out.getvalue()


def word(parts: Sequence[tuple[str, object]], *, title: str = "", author: str = "") -> bytes:
    """A document of Word: of each part its style and text, or ``table`` and its rows."""
    from docx import Document

    document = Document()
    document.core_properties.title, document.core_properties.author = title, author
    for style, what in parts:
        if style == "table":
            rows = list(what)  # type: ignore[call-overload]
            table = document.add_table(rows=len(rows), cols=len(rows[0]))
            for row, cells in zip(table.rows, rows, strict=True):
                for cell, text in zip(row.cells, cells, strict=True):
                    cell.text = text
        else:
            document.add_paragraph(str(what), style=style)
    return saved(document)


def presentation(slides: Sequence[tuple[str, Sequence[str], str]]) -> bytes:
    """A presentation: of each slide its title, the lines of its text, and its notes."""
    from pptx import Presentation

    deck = Presentation()
    for title, lines, notes in slides:
        slide = deck.slides.add_slide(deck.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = "\n".join(lines)
        if notes:
            slide.notes_slide.notes_text_frame.text = notes
    return saved(deck)


def workbook(sheets: Mapping[str, Sequence[Sequence[object]]]) -> bytes:
    """A workbook of sheets by name."""
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    return saved(book)


def epub(chapters: Mapping[str, str], *, title: str = "", extra: Mapping[str, str] | None = None) -> bytes:
    """A book: HTML of each chapter by the name of its file; other files by name."""
    items = "".join(
        f'<item id="c{at}" href="{name}" media-type="application/xhtml+xml"/>'
        for at, name in enumerate(chapters)
    )
    order = "".join(f'<itemref idref="c{at}"/>' for at in range(len(chapters)))
    package = (
        '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title>'
        f"<dc:language>en</dc:language><dc:creator>A. Writer</dc:creator></metadata>"
        f"<manifest>{items}</manifest><spine>{order}</spine></package>"
    )
    container = (
        '<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0">'
        '<rootfiles><rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles>'
        "</container>"
    )
    files = {"META-INF/container.xml": container, "OPS/book.opf": package}
    pages = {f"OPS/{name}": text for name, text in chapters.items() if ".." not in name}
    return zipped({**files, **pages, **(extra or {})})


def mail(
    subject: str, text: str, *, sender: str = "ann@example.org", html: str = "", attachment: str = ""
) -> bytes:
    """A message."""
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = subject, sender, "bob@example.org"
    message["Date"] = "Mon, 02 Nov 2026 10:00:00 +0000"
    message.set_content(text)
    if html:
        message.add_alternative(html, subtype="html")
    if attachment:
        message.add_attachment(b"x", maintype="application", subtype="octet-stream", filename=attachment)
    return message.as_bytes()


def zipped(files: Mapping[str, str | bytes]) -> bytes:
    """A zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def saved(document: object) -> bytes:
    """The bytes of what has a method ``save``."""
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()
