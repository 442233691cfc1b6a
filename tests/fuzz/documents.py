"""Readers of documents, archives, sitemaps and sources: what a stranger's file may be."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from evenmesh_documents import readers
from evenmesh_documents.attribution import Attribution
from evenmesh_documents.document import UnreadableError
from evenmesh_documents.limits import Limits
from evenmesh_documents.origins import feeds
from evenmesh_documents.origins.archives import expanded
from evenmesh_documents.origins.found import Found
from evenmesh_documents.origins.sites import entries_of, parsed_sitemap
from evenmesh_documents.parsing import wire
from evenmesh_documents.parsing.process import read_any
from evenmesh_documents.source import Source
from evenmesh_documents.splitting import Splitting, split
from evenmesh_documents.syncing import source_file
from evenmesh_documents.syncing.naming import named
from tests.support import document_files as files

for _reader in readers.FORMATS:
    # They are imported when a file needs them, which is too late to be instrumented for coverage.
    import_module(f"{readers.__name__}.{_reader}")

LIMITS: Final = Limits(
    file_bytes=1 << 20, unpacked_bytes=4 << 20, entries=200, pages=50, characters=1 << 20, archive_depth=3
)
"""Small, so that an input costs little; what is beyond one is refused as it is beyond a large one."""

_REFUSALS: Final = (UnreadableError,)
Reader = tuple[str, Callable[[bytes], object], tuple[type[Exception], ...], tuple[bytes, ...], float]


def _document(ending: str, *, text: bool = False) -> Callable[[bytes], object]:
    """Return what reads a document, sends it as a parser does, and splits it.

    Args:
        ending: of its name.
        text: whether most inputs are made UTF-8 first: of others a library guesses the encoding, which takes
            longer than all the rest.
    """

    def read(data: bytes) -> None:
        if text and data[:1] and data[0] % 8:
            data = data.decode(errors="replace").encode()
        document = read_any(Source(f"folder/input{ending}", data, LIMITS))
        again = wire.unpacked(json.loads(wire.packed(document)))
        assert again == document
        read_text, attribution = document.text, Attribution()
        for chunk in split(document, Splitting(size=32, overlap=8)):
            assert chunk.text
            assert chunk.text.endswith(read_text[chunk.start : chunk.end])
            chunk.text.encode()
            provider, _ = attribution.provider_of(document, chunk)
            assert len(attribution.attributes(document, chunk, provider)) <= 64
            assert len(named("s", document.address, chunk.id.rpartition("#")[2]).encode()) <= 256

    return read


def _archive(ending: str) -> Callable[[bytes], object]:
    def read(data: bytes) -> None:
        def fetch(most: int) -> bytes:
            return data

        total = 0
        for one in expanded([Found(Path("input"), f"input{ending}", fetch=fetch)], LIMITS):
            assert one.address.startswith("input")
            assert ".." not in one.address.split("/") or one.reason
            if one.fetch is not None and not one.reason:
                total += len(one.fetch(LIMITS.file_bytes))
        assert total <= LIMITS.unpacked_bytes

    return read


def _sitemap(data: bytes) -> None:
    for address, stamp in entries_of(parsed_sitemap(data), "url"):
        assert len(address) <= 2_100
        assert len(stamp) <= 64


def _feed(data: bytes) -> None:
    parsed_sitemap(data)
    for entry in feeds.entries_of(data):
        assert entry.id
        assert len(entry.stamp) <= 64
        read_any(Source("https://a.example/b.html", entry.page, LIMITS))


def _sources(data: bytes) -> None:
    source_file.parsed(data, Path("/etc/evenmesh/sources.yaml"))


def _zipped(contents: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def _tarred(contents: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _part(name: str, file: bytes, part: str, weight: float) -> Reader:
    """Return a reader of files like this one, of which the input is one part: what is packed is rarely read.

    Args:
        name: format, and ending without the dot.
        file: a file that is taken.
        part: its part; it begins as the file has it.
        weight: its share of a long run.
    """
    kind, ending = name.split()
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        contents = {one: archive.read(one) for one in archive.namelist()}
    read = _document(f".{ending}")

    def given(data: bytes) -> None:
        read(_zipped({**contents, part: data}))

    return f"part-of-{kind}", given, _REFUSALS, (contents[part],), weight


_MARKDOWN: Final = (
    b"---\ntitle: T\nprovider: P\ntags: [a, b]\n---\n# A\n\nText *of* [a](b.md).\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    b"## B\n\n- one\n  - two\n\n```py\nx = 1\n```\n\n<p>html</p>\n",
    b"---\n&a [*a, *a]\n---\nx",
    b"# " * 99,
    b"> " * 400 + b"x",
)
_HTML: Final = (
    b"<html lang=en><head><title>T</title><meta name=author content=A><link rel=canonical href='https://a.example/'></head>"
    b"<body><nav>n</nav><main><h1>A</h1><p>One<br>two</p><ul><li>x<ul><li>y</ul></ul><table><tr><th>a<td>b</table>"
    b"<pre>code</pre></main></body></html>",
    b"<?xml version='1.0'?><!DOCTYPE html [<!ENTITY a 'b'>]><html><body>&a;</body></html>",
    b"<div>" * 600 + b"x",
    b"<table>" * 90 + b"<tr><td rowspan=99999 colspan=99999>x",
)
_MAIL: Final = (
    b"From: A <a@b.example>\nSubject: =?utf-8?q?S=C3=A9?=\nDate: Wed, 25 Nov 2026 10:00:00 +0000\nMIME-Version: 1.0\n"
    b"Content-Type: multipart/alternative; boundary=x\n\n--x\nContent-Type: text/plain\n\nText.\n--x\n"
    b"Content-Type: text/html\n\n<p>Text.</p>\n--x--\n",
    b"Subject: " + b"=?utf-8?b?" * 40 + b"\n\nx",
)
_SITEMAP: Final = (
    b"<?xml version='1.0'?><urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9'><url><loc>https://a.example/b?c#d"
    b"</loc><lastmod>2026-11-25</lastmod></url><url><loc>http://a.example/</loc></url></urlset>"
)
_FEED: Final = (
    b"<?xml version='1.0'?><rss version='2.0' xmlns:dc='http://purl.org/dc/elements/1.1/'><channel><item><title>A &amp;lt;"
    b"</title><link>https://a.example/b</link><guid>1</guid><dc:creator>C</dc:creator><pubDate>Wed, 25 Nov 2026 10:00:00 GMT"
    b"</pubDate><description>&lt;p&gt;Text&lt;/p&gt;</description></item><item/></channel></rss>",
    b"<feed xmlns='http://www.w3.org/2005/Atom'><entry><title type='xhtml'><div xmlns='http://www.w3.org/1999/xhtml'>A</div>"
    b"</title><link href='/b'/><id>b</id><updated>2026-11-25T10:00:00Z</updated><author><name>A</name></author>"
    b"<content type='html'>&lt;b&gt;x</content><summary>y</summary></entry></feed>",
    b"<rdf:RDF xmlns:rdf='http://www.w3.org/1999/02/22-rdf-syntax-ns#' xmlns='http://purl.org/rss/1.0/'><item rdf:about='a'>"
    b"<title>T</title></item></rdf:RDF>",
)
_SOURCES: Final = (
    b"sources:\n  docs:\n    collection: bikes\n    paths: [a, s3://b/c]\n    grace: 12h\n    size: 64\n    tokenizer: words\n"
    b"    provider: [folder]\n    limit: [pages=9]\n    interval: 0.5\n    allow_private: false\n    k1: 0.9\n",
    b"sources: &a\n  docs: *a\n",
    b"sources: {docs: {collection: b, paths: x, size: 1e999, b: .nan}}",
)
_MEMBERS: Final = {
    "a.md": b"# A\n\nText.",
    "f/b.csv": b"a,b\n1,2\n",
    "../c.md": b"x",
    "d.tar": _tarred({"e.md": b"e"}),
}


TARGETS: Final[tuple[Reader, ...]] = (
    ("document-markdown", _document(".md", text=True), _REFUSALS, _MARKDOWN, 2),
    ("document-html", _document(".html", text=True), _REFUSALS, _HTML, 2),
    (
        "document-csv",
        _document(".csv", text=True),
        _REFUSALS,
        (b'a,b\n1,"2\n3"\n', b"a;b\n1;2\n", b'"' * 50, b"\xff\xfea\x00"),
        2,
    ),
    (
        "document-text",
        _document(".txt", text=True),
        _REFUSALS,
        (b"One.\n\nTwo.\x0cThree.", "Zürich".encode("cp1252"), b"\x00"),
        2,
    ),
    ("document-mail", _document(".eml", text=True), _REFUSALS, _MAIL, 2),
    (
        "document-word",
        _document(".docx"),
        _REFUSALS,
        (files.word([("Heading 1", "A"), ("Normal", "Text.")]),),
        0.3,
    ),
    (
        "document-spreadsheet",
        _document(".xlsx"),
        _REFUSALS,
        (files.workbook({"A": [["a", 1], ["b", None]]}),),
        0.3,
    ),
    (
        "document-presentation",
        _document(".pptx"),
        _REFUSALS,
        (files.presentation([("A", ["x", "y"], "notes")]),),
        0.3,
    ),
    (
        "document-pdf",
        _document(".pdf"),
        _REFUSALS,
        (
            files.pdf(
                [[(18.0, "A"), (11.0, "One line"), (11.0, "goes on.")], [(11.0, "- item"), (11.0, "2")]]
            ),
            b"%PDF-1.4",
        ),
        0.3,
    ),
    ("document-epub", _document(".epub"), _REFUSALS, (files.epub({"a.xhtml": "<h1>A</h1><p>x</p>"}),), 0.5),
    _part("word docx", files.word([("Heading 1", "A"), ("List Bullet", "x")]), "word/document.xml", 0.3),
    _part("spreadsheet xlsx", files.workbook({"A": [["a", 1]]}), "xl/worksheets/sheet1.xml", 0.3),
    _part("presentation pptx", files.presentation([("A", ["x"], "notes")]), "ppt/slides/slide1.xml", 0.3),
    _part("epub epub", files.epub({"a.xhtml": "<h1>A</h1><p>x</p>"}), "OPS/book.opf", 0.5),
    (
        "archive-zip",
        _archive(".zip"),
        _REFUSALS,
        (_zipped(_MEMBERS), _zipped({"z.zip": _zipped(_MEMBERS)})),
        1,
    ),
    (
        "archive-tar",
        _archive(".tar"),
        _REFUSALS,
        (_tarred(_MEMBERS), _tarred({"long/" * 40 + "a.md": b"x"})),
        2,
    ),
    ("archive-tar-gzip", _archive(".tgz"), _REFUSALS, (gzip.compress(_tarred(_MEMBERS)),), 1),
    (
        "sitemap",
        _sitemap,
        _REFUSALS,
        # One that is taken, and one with an address that is none.
        (_SITEMAP, gzip.compress(_SITEMAP), _SITEMAP.replace(b"a.example", b"[::1")),
        2,
    ),
    ("feed-entries", _feed, _REFUSALS, _FEED, 1),
    ("sources-file", _sources, (source_file.SourceFileError,), _SOURCES, 2),
)
"""Of each: name, what reads, what it may raise, seeds, and its share of a long run."""
