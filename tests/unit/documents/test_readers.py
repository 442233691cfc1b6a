"""Readers: text with structure, and what documents say of themselves."""

from __future__ import annotations

import csv
import io
import zipfile

import pytest

from evenmesh_documents import Block, Document, Kind, Limits, Link, Source, UnreadableError, read
from tests.support import document_files as files

P, L, T, C = Kind.PARAGRAPH, Kind.LIST, Kind.TABLE, Kind.CODE


def blocks(document: Document) -> list[tuple[Kind, str, tuple[str, ...]]]:
    return [(one.kind, one.text, one.headings) for one in document.blocks]


def of(address: str, data: str | bytes, limits: Limits | None = None) -> Document:
    raw = data.encode() if isinstance(data, str) else data
    return read(Source(address, raw, limits or Limits()))


MARKDOWN = """---
title: Care of chains
author: A. Rider
tags: [bike, chain]
date: 2026-11-02
nested: {a: 1}
---

# Chains

Oil the *chain* every
200 km, see [the manual](https://example.org/m).

## Tools

- rag
- oil
  1. thin
  2. thick

| tool | use |
|---|---|
| rag | `wipe` a\\|b |

```sh
clean --all

dry
```

<div><p>A <b>note</b> in HTML.</p></div>

## Empty
"""


def test_markdown_has_headings_lists_tables_code_links_and_front_matter() -> None:
    document = of("a/care.md", MARKDOWN)

    assert blocks(document) == [
        (P, "Oil the chain every 200 km, see the manual.", ("Chains",)),
        (L, "- rag\n- oil\n  1. thin\n  2. thick", ("Chains", "Tools")),
        (T, "| tool | use |\n| --- | --- |\n| rag | `wipe` a\\|b |", ("Chains", "Tools")),
        (C, "```sh\nclean --all\n\ndry\n```", ("Chains", "Tools")),
        (P, "A note in HTML.", ("Chains", "Tools")),
        (P, "Empty", ("Chains", "Empty")),
    ]
    assert (document.title, document.author, document.date) == ("Care of chains", "A. Rider", "2026-11-02")
    assert document.links == (Link("the manual", "https://example.org/m"),)
    assert dict(document.attributes) == {"tags": "bike, chain"}


def test_front_matter_that_is_no_yaml_is_noted_and_the_page_read() -> None:
    document = of("a.md", "---\na: [\n---\n\nText.\n")
    assert blocks(document) == [(P, "Text.", ())]
    assert document.notes == ("its front matter is not YAML",)


def test_a_rule_at_the_beginning_is_no_front_matter() -> None:
    assert blocks(of("a.md", "---\n\nText.\n")) == [(P, "Text.", ())]


HTML = """<!doctype html><html lang="de"><head><meta charset="iso-8859-1"><title>Öl – Shop</title>
<meta name="author" content="B. Fahrer"><meta property="article:published_time" content="2026-01-02">
<meta property="og:site_name" content="Shop"><link rel="canonical" href="https://shop.example/oil"></head>
<body><nav><a href="/">Home</a></nav><main><h1>Öl</h1><p>Jede<br>Kette <a href="x.html">braucht</a> Öl.</p>
<ul><li>dünn<ul><li>Winter</li></ul></li><li>dick</li></ul>
<table><tr><th>Sorte</th><th>Preis</th></tr><tr><td rowspan="2">dünn</td><td>3 €</td></tr><tr><td>4 €</td></tr></table>
<pre>a
  b</pre><script>alert(1)</script><p hidden>weg</p>lose <code>x</code></main><footer>Impressum</footer></body></html>"""


def test_html_is_its_main_part_in_the_encoding_that_it_declares() -> None:
    document = of("shop/oil.html", HTML.replace("€", "EUR").replace("–", "-").encode("latin-1"))

    assert blocks(document) == [
        (P, "Jede\nKette braucht Öl.", ("Öl",)),
        (L, "- dünn\n  - Winter\n- dick", ("Öl",)),
        (T, "| Sorte | Preis |\n| --- | --- |\n| dünn | 3 EUR |\n| dünn | 4 EUR |", ("Öl",)),
        (C, "```\na\n  b\n```", ("Öl",)),
        (P, "lose `x`", ("Öl",)),
    ]
    assert (document.title, document.author, document.language, document.date) == (
        "Öl - Shop",
        "B. Fahrer",
        "de",
        "2026-01-02",
    )
    assert dict(document.attributes) == {"site": "Shop", "url": "https://shop.example/oil"}
    assert document.links == (Link("braucht", "x.html"),)


def test_html_of_tables_that_only_place_things_is_read_as_blocks() -> None:
    document = of(
        "a.html", "<table role=presentation><tr><td><p>One.</p></td><td><p>Two.</p></td></tr></table>"
    )
    assert blocks(document) == [(P, "One.", ()), (P, "Two.", ())]


def test_html_says_the_captions_of_tables_and_rows_within_forms() -> None:
    rows = "<form><tr><td>oil</td><form><td>3</td></form></tr></form>"
    document = of("a.html", f"<table><caption>Prices<br>2026</caption>{rows}</table>")
    assert blocks(document) == [(P, "Prices\n2026", ()), (T, "| oil | 3 |\n| --- | --- |", ())]
    assert of("a.html", "<table><caption>No</caption><p>cells</table>").text == "No\n\ncells"


def test_html_says_what_should_not_stand_between_the_items_of_a_list() -> None:
    document = of(
        "a.html",
        "<ul>loose <script>x</script><div><li>thin<li>thick</div><span>so <b>called</b></span>"
        "<div hidden>never</div> tail<li>wax<ol>1st<a><li>good</a></ol></ul>",
    )
    said = ["- loose", "- thin", "- thick", "- so called", "- tail", "- wax", "  - 1st", "  - good"]
    assert blocks(document) == [(L, "\n".join(said), ())]


def test_html_says_the_headers_of_articles_and_not_that_of_the_page() -> None:
    page = "<header>Shop</header><article><header><h1>Oil</h1><p>Lead.</p></header><p>Text.</p></article>"
    for tail in ("", "<article><header><h2>Wax</h2></header>More.</article>"):
        document = of("a.html", f"<body>{page}{tail}<footer>Imprint</footer>")
        assert blocks(document)[:2] == [(P, "Lead.", ("Oil",)), (P, "Text.", ("Oil",))]
        assert blocks(document)[2:] == ([(P, "More.", ("Oil", "Wax"))] if tail else [])


def test_text_has_paragraphs_and_pages() -> None:
    document = of("a.txt", "One\r\ntwo.\r\n \r\nThree.\fFour.".encode("utf-16"))
    assert [(one.text, one.page) for one in document.blocks] == [
        ("One\ntwo.", 1),
        ("Three.", 1),
        ("Four.", 2),
    ]


def test_text_in_an_old_encoding_is_recognized() -> None:
    said = "Die Kette läuft über große Ritzel, und der Schlüssel hängt an der Tür."
    assert of("a.txt", said.encode("cp1252")).text == said


def test_the_encoding_is_that_of_letters_however_late_they_come() -> None:
    said = (
        "plain text\n" * 10_000 + "Die Kette läuft über große Ritzel, der Schlüssel hängt an der Tür.\n" * 20
    )
    assert of("a.txt", said.encode("cp1252")).text == said.strip()


@pytest.mark.parametrize("end", ["\n", " "], ids=["lines", "one line"])
@pytest.mark.parametrize("before", ["", "a"])
@pytest.mark.parametrize(
    ("encoding", "said"),
    [
        ("gbk", "今天我们学习如何给自行车的链条上油，以及在雨后如何保养它。"),
        ("shift_jis", "今日は自転車のチェーンに油をさす方法を学びます。雨の後の手入れも。"),
        ("euc_kr", "오늘은 자전거 체인에 기름을 치는 방법을 배웁니다."),
    ],
)
def test_long_text_in_letters_of_two_bytes_is_read(encoding: str, said: str, before: str, end: str) -> None:
    text = before + (said + end) * 2_000
    assert of("a.txt", text.encode(encoding)).text == text.strip()


PDF = files.pdf(
    [
        [
            (9, "Manual of chains"),
            (18, "Care"),
            (11, ""),
            (11, "Oil the chain every 200 kilometres, and after"),
            (11, "rain at once."),
            (11, ""),
            (11, "A dry chain squeaks and then"),
            (9, "1"),
        ],
        [(9, "Manual of chains"), (11, "it breaks."), (14, "Tools"), (11, "A rag is enough."), (9, "2")],
        [(9, "Manual of chains"), (11, "Keep it dry."), (9, "3")],
        [],
    ],
    info={"Title": "The manual", "Author": "A. Rider", "CreationDate": "D:20261102100000Z"},
)


def test_pdf_has_pages_headings_by_size_and_no_running_titles() -> None:
    document = of("manual.pdf", PDF)

    assert [(one.text, one.headings, one.page, one.last_page) for one in document.blocks] == [
        ("Oil the chain every 200 kilometres, and after rain at once.", ("Care",), 1, 1),
        ("A dry chain squeaks and then it breaks.", ("Care",), 1, 2),
        ("A rag is enough.", ("Care", "Tools"), 2, 2),
        ("Keep it dry.", ("Care", "Tools"), 3, 3),
    ]
    assert (document.title, document.author, document.date) == ("The manual", "A. Rider", "2026-11-02")
    assert document.notes == ("pages without text (scanned?): 4",)


def test_pdf_has_its_headings_below_letters_of_two_units() -> None:
    lines = [*[(11.0, "OIL the CHAIN")] * 9, (18.0, "CARE"), *[(11.0, "KEEP IT DRY")] * 20]
    document = of("a.pdf", files.pdf([lines], small="\U0001d465"))
    first, second = blocks(document)
    assert first == (P, " ".join(["OIL \U0001d465\U0001d465\U0001d465 CHAIN"] * 9), ())
    assert second == (P, " ".join(["KEEP IT DRY"] * 20), ("CARE",))


def test_pdf_has_the_headings_of_its_bookmarks() -> None:
    data = files.pdf(
        [[(11, "Care"), (11, "Oil it."), (11, "Often."), (11, "")], [(11, "A rag is enough.")]],
        bookmarks=[("Care", 1), ("Tools", 2)],
    )
    found = [(one.text, one.headings, one.page) for one in of("a.pdf", data).blocks]
    assert found == [("Oil it. Often.", ("Care",), 1), ("A rag is enough.", ("Tools",), 2)]


def test_ocr_is_given_pages_without_text() -> None:
    shapes = []

    def ocr(image: object) -> str:
        shapes.append(image.shape)  # type: ignore[attr-defined]
        return "Oil it.\nOften.\n\nDry it."

    document = read(Source("a.pdf", files.pdf([[]]), Limits(), ocr))
    assert [(one.text, one.page) for one in document.blocks] == [("Oil it. Often.", 1), ("Dry it.", 1)]
    assert shapes == [(1584, 1224, 3)]  # twice 792 × 612 points
    with pytest.raises(UnreadableError, match="scanned"):
        of("a.pdf", files.pdf([[]]))


def test_word_has_headings_lists_and_tables() -> None:
    data = files.word(
        [
            ("Heading 1", "Chains"),
            ("Normal", "Oil them."),
            ("List Bullet", "thin oil"),
            ("List Bullet 2", "in winter"),
            ("Heading 2", "Prices"),
            ("table", [["oil", "price"], ["thin", "3"]]),
        ],
        title="Care",
        author="A. Rider",
    )
    document = of("a.docx", data)
    assert blocks(document) == [
        (P, "Oil them.", ("Chains",)),
        (L, "- thin oil\n  - in winter", ("Chains",)),
        (T, "| oil | price |\n| --- | --- |\n| thin | 3 |", ("Chains", "Prices")),
    ]
    assert (document.title, document.author) == ("Care", "A. Rider")


def test_word_shows_what_stands_in_controls_fields_and_changes() -> None:
    from docx import Document as WordDocument
    from docx.oxml import parse_xml
    from docx.oxml.ns import nsdecls

    def run(text: str) -> str:
        return f"<w:r><w:t xml:space='preserve'>{text}</w:t></w:r>"

    def control(inner: str, properties: str = "") -> str:
        return f"<w:sdt><w:sdtPr>{properties}</w:sdtPr><w:sdtContent>{inner}</w:sdtContent></w:sdt>"

    def row(text: str) -> str:
        return f"<w:tr><w:tc><w:p>{run(text)}</w:p></w:tc></w:tr>"

    who = "w:id='1' w:author='a'"
    contents = "<w:docPartObj><w:docPartGallery w:val='Table of Contents'/></w:docPartObj>"
    inline = [
        run("Oil"),
        control(run(" the")),
        f"<w:ins {who}>{run(' chain')}</w:ins>",
        f"<w:del {who}><w:r><w:delText> belt</w:delText></w:r></w:del>",
        f"<w:moveFrom {who}>{run(' often')}</w:moveFrom>",
        f"<w:fldSimple w:instr='DATE'>{run(' daily')}</w:fldSimple>",
        f"<w:smartTag w:element='x'>{run(' in May')}</w:smartTag>",
    ]
    table = f"<w:tbl><w:tblPr/><w:tblGrid><w:gridCol/></w:tblGrid>{row('thin')}{row('thick')}</w:tbl>"
    parts = [
        control(f"<w:p>{run('Chains 1')}</w:p>", contents),
        control(f"<w:p>{run('Chains')}</w:p>"),
        f"<w:p>{''.join(inline)}</w:p>",
        "<w:tbl><w:tblPr/><w:tblGrid><w:gridCol/></w:tblGrid>"
        f"{row('oil')}{control(row('good'))}<w:tr><w:tc>{table}<w:p/></w:tc></w:tr></w:tbl>",
    ]
    document = WordDocument()
    for part in reversed(parts):
        xml = parse_xml(f"<w:body {nsdecls('w')}>{part}</w:body>")
        document.element.body.insert(0, xml[0])
    assert blocks(of("a.docx", files.saved(document))) == [
        (P, "Chains", ()),
        (P, "Oil the chain daily in May", ()),
        (T, "| oil |\n| --- |\n| good |\n| thin thick |", ()),
    ]


def test_a_slide_is_a_page_with_its_title_as_heading_and_its_notes() -> None:
    document = of(
        "a.pptx", files.presentation([("Chains", ["Oil them", "Often"], "Say it twice."), ("End", [], "")])
    )
    assert [(one.kind, one.text, one.headings, one.page) for one in document.blocks] == [
        (L, "- Oil them\n- Often", ("Chains",), 1),
        (P, "Say it twice.", ("Chains",), 1),
        (P, "End", ("End",), 2),
    ]


def test_a_slide_says_what_its_groups_and_tables_hold_and_where_its_lines_break() -> None:
    from pptx import Presentation
    from pptx.util import Inches

    deck = Presentation()
    slide = deck.slides.add_slide(deck.slide_layouts[5])
    slide.shapes.title.text = "Chains\x0band oil"
    group = slide.shapes.add_group_shape()
    group.shapes.add_textbox(0, 0, 1, 1).text_frame.text = "Oil them"
    group.shapes.add_group_shape().shapes.add_textbox(0, 0, 1, 1).text_frame.text = "often"
    table = slide.shapes.add_table(2, 2, 0, 0, Inches(1), Inches(1)).table
    for at, said in enumerate(("oil", "price", "a|b", "3\n4")):
        table.cell(at // 2, at % 2).text = said
    slide.shapes.add_connector(1, 0, 0, 1, 1)
    document = of("a.pptx", files.saved(deck))
    assert blocks(document) == [
        (P, "Oil them", ("Chains and oil",)),
        (P, "often", ("Chains and oil",)),
        (T, "| oil | price |\n| --- | --- |\n| a\\|b | 3 4 |", ("Chains and oil",)),
    ]


def test_a_sheet_is_as_large_as_its_rows_whatever_it_says() -> None:
    with zipfile.ZipFile(io.BytesIO(files.workbook({"Oil": [["kind", "price"]]}))) as book:
        parts = {name: book.read(name) for name in book.namelist()}
    sheet = parts["xl/worksheets/sheet1.xml"]
    for said in (b"A1:A1", b"A1:XFD1048576"):
        changed = sheet.replace(b'"A1:B1"', b'"' + said + b'"')
        assert changed != sheet
        document = of("a.xlsx", files.zipped({**parts, "xl/worksheets/sheet1.xml": changed}))
        assert blocks(document) == [(T, "| kind | price |\n| --- | --- |", ("Oil",))]


def test_a_sheet_of_charts_is_left_out() -> None:
    from openpyxl import Workbook

    book = Workbook()
    book.active.title = "Oil"
    book.active.append(["kind", "price"])
    book.create_chartsheet("Chart", 0)
    book["Oil"].print_area = "A1:B1"  # a name that counts the first sheet
    assert blocks(of("a.xlsx", files.saved(book))) == [(T, "| kind | price |\n| --- | --- |", ("Oil",))]


def test_a_slide_whose_title_is_empty_has_its_number() -> None:
    data = files.presentation([("Chains", ["Oil them"], ""), ("\n", ["Often"], "")])
    assert blocks(of("a.pptx", data)) == [(P, "Oil them", ("Chains",)), (P, "Often", ("Slide 2",))]


def test_a_sheet_is_a_table_below_its_name() -> None:
    document = of(
        "prices.xlsx", files.workbook({"Oil": [["kind", "price"], ["thin", 3.0], [], [None, True]]})
    )
    assert blocks(document) == [(T, "| kind | price |\n| --- | --- |\n| thin | 3 |\n|  | TRUE |", ("Oil",))]
    assert document.title == "prices"


@pytest.mark.parametrize("before", [b"", b"\0" * 100])
@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_entities_are_found_however_a_part_is_packed(before: bytes, packed: int) -> None:
    with zipfile.ZipFile(io.BytesIO(files.word([("Normal", "Oil them.")]))) as given:
        parts = {name: given.read(name) for name in given.namelist()}
    parts["word/document.xml"] = b"<!--" + b"x" * 4_000 + b"--><!ENTITY a 'b'>" + parts["word/document.xml"]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packed) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(UnreadableError, match=r"declares XML entities in word/document\.xml"):
        of("a.docx", before + out.getvalue())


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_is_a_table_whatever_stands_between_its_cells(delimiter: str) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows([["kind", "price"], ["thin,\nlight", "3"], ["thick", "4"]])
    document = of("oil.csv", out.getvalue())
    assert document.text == "| kind | price |\n| --- | --- |\n| thin, light | 3 |\n| thick | 4 |"


@pytest.mark.parametrize("cell", ["plain", '"quoted, as text"', "'tis so', 'tis", '"a ""b"""'])
def test_doubled_quotes_of_a_table_are_read_wherever_the_first_ones_stand(cell: str) -> None:
    rows = ["name,said", *(f"{number},{cell}" for number in range(500)), 'last,"""Oil, or rust"", he said"']
    document = of("a.csv", "\n".join(rows) + "\n")
    columns = 3 if cell.startswith("'") else 2
    assert document.text.splitlines()[0].count("|") == columns + 1
    assert document.text.splitlines()[-1].startswith('| last | "Oil, or rust", he said |')


def test_epub_has_the_chapters_in_order_and_notes_what_is_missing() -> None:
    data = files.epub(
        {"two.xhtml": "<html><body><h1>Second</h1><p>B.</p></body></html>", "../../../etc/passwd": ""},
        title="Book",
    )
    document = of("b.epub", data)
    assert blocks(document) == [(P, "B.", ("Second",))]
    assert (document.title, document.author, document.language) == ("Book", "A. Writer", "en")
    assert document.notes == ("lacks chapters: ../../etc/passwd",)


def test_mail_is_its_text_and_notes_attachments() -> None:
    document = of("a.eml", files.mail("Chains", "Oil them.\n\nOften.", html="<p>No</p>", attachment="a.zip"))
    assert [one.text for one in document.blocks] == ["Oil them.", "Often."]
    assert (document.title, document.author, document.date) == ("Chains", "ann@example.org", "2026-11-02")
    assert document.notes == ("attachments are not read: a.zip",)


def test_mail_in_an_encoding_that_there_is_not_is_read() -> None:
    data = b"Subject: x\nContent-Type: text/plain; charset=nonsense-8\n\nOil them.\n"
    assert of("a.eml", data).text == "Oil them."
    html = b'Subject: x\nContent-Type: text/html; charset=utf-8\n\n<meta charset="latin-1"><p>\xc3\x96l</p>'
    assert of("a.eml", html).text == "Öl"


@pytest.mark.parametrize(
    ("address", "data", "reason"),
    [
        ("a.xls", b"x", "is of an old format that has no reader; save it as .xlsx"),
        ("a.png", b"x", "has no reader for .png"),
        ("README", b"x", "has no ending that names its format"),
        ("a.pdf", b"<html>", "is not a PDF"),
        ("a.pdf", b"%PDF-1.7\nnonsense", "is damaged"),
        ("a.pdf", files.pdf([[(11, "x")]], encrypted=True), "is encrypted"),
        ("a.docx", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "is encrypted, or of an old format of Office"),
        ("a.docx", b"PK\x03\x04", "is damaged, or not a .docx file"),
        ("a.txt", b"a\x00b", "is not text"),
        ("a.html", b"", "is not HTML"),
        ("a.epub", files.zipped({"a": "b"}), "lacks META-INF/container.xml"),
    ],
    ids=range(11),
)
def test_what_cannot_be_read_is_said(address: str, data: bytes, reason: str) -> None:
    with pytest.raises(UnreadableError, match=reason):
        of(address, data)


@pytest.mark.parametrize("address", ["a.md", "a.txt", "a.html", "a.csv", "a.eml"])
def test_a_text_beyond_the_limit_is_refused(address: str) -> None:
    with pytest.raises(UnreadableError, match="has more than 100 characters"):
        of(address, "Subject: x\n\n" + "word, word " * 20, Limits(characters=100))


def test_pages_beyond_the_limit_are_refused() -> None:
    with pytest.raises(UnreadableError, match="has 3 pages, at most 2 are read"):
        of("a.pdf", files.pdf([[(11, "x")]] * 3), Limits(pages=2))
    with pytest.raises(UnreadableError, match="has 2 slides, at most 1 are read"):
        of("a.pptx", files.presentation([("a", ["b"], "")] * 2), Limits(pages=1))


def test_characters_that_are_no_text_are_left_out() -> None:
    assert of("a.txt", "a\x01b\u2028c\x85d").blocks == (Block(P, "ab\nc\nd"),)


def test_what_a_document_states_is_text_too() -> None:
    page = of("a.md", '---\ntitle: "a\\uD800\\n b"\nsi\u200bte: "\\uDC00c\\x01"\nauthor: "\\e[2J"\n---\ntext')
    assert (page.title, page.author, dict(page.attributes)) == ("a b", "[2J", {"si\u200bte": "c"})


@pytest.mark.parametrize("title", ["\xfe\xff\xd8\x00\x00A", "\xfe\xff\x00A\xd8\x3d"])
def test_a_pdf_that_states_half_a_letter_is_read(title: str) -> None:
    pages = [[(20.0, "Chains"), (11.0, "Oil them every 200 km.")]]
    document = of("a.pdf", files.pdf(pages, info={"Title": title, "Author": "A. Rider"}))
    assert (document.title, document.author) == ("Chains", "A. Rider")
    document = of("a.pdf", files.pdf(pages, bookmarks=[(title, 1), ("Chains", 1)]))
    assert blocks(document) == [(P, "Oil them every 200 km.", ("Chains",))]


def test_long_cells_of_a_table_are_read_and_leave_other_readers_their_limit() -> None:
    before = csv.field_size_limit()
    document = read(Source("long.csv", b"a,b\n" + b"1" * (before + 1) + b",2\n"))
    assert "1" * (before + 1) in document.text
    assert csv.field_size_limit() == before


def test_the_text_of_a_paragraph_of_word_is_that_of_the_library() -> None:
    from docx import Document as WordDocument
    from docx.oxml import parse_xml
    from docx.oxml.ns import nsdecls

    from evenmesh_documents.readers import word

    paragraph = WordDocument().add_paragraph("Oil\tthe")
    paragraph.add_run(" chain").add_break()
    inner = "<w:r><w:t>here</w:t><w:noBreakHyphen/></w:r><w:bookmarkStart w:id='1'/>"
    paragraph._p.append(parse_xml(f"<w:hyperlink {nsdecls('w')}>{inner}<w:r><w:cr/></w:r></w:hyperlink>"))
    paragraph._p.append(parse_xml(f"<w:ins {nsdecls('w')}><w:r><w:t>inserted</w:t></w:r></w:ins>"))
    assert word._text(paragraph) == paragraph.text == "Oil\tthe chain\nhere-\n"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\r\nb\x85c\u2028d\re", "a\nb\nc\nd\ne"),
        ("a\x00b\x0cc\ud800d\ufffe", "abcd"),
        ("a\u00a0b\u3000c \n d", "a\u00a0b\u3000c \n d"),
        ("plain text", "plain text"),
    ],
)
def test_characters_of_no_text_are_left_out_and_others_kept(text: str, kept: str) -> None:
    from evenmesh_documents.outline import clean

    assert clean(text) == kept
