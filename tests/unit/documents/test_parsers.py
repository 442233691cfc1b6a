"""Files of strangers: each is read in a process with bounds; what is hostile is named, and nothing else is lost."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evenmesh_documents import Block, Document, Kind, Limits, Parsed, Parsers
from evenmesh_documents.origins.found import Found, find
from evenmesh_documents.parsing import wire
from evenmesh_documents.parsing.parsers import ParserError
from tests.support import document_files as files

OCR = "tests.support.ocr"


def read(folder: Path, contents: dict[str, bytes], parsers: Parsers) -> list[Parsed]:
    """Write the files and read them."""
    paths = []
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        paths.append((path, name))
    return list(parsers.read_all(paths))


def outcomes(parsed: list[Parsed]) -> dict[str, str]:
    """Of each file why it was not read, or its text."""
    return {one.address: one.reason if one.document is None else one.document.text for one in parsed}


def bomb(name: str) -> bytes:
    """An archive of 16 MiB that takes 16 kB."""
    return files.zipped({name: b"\0" * (16 << 20)})


def laughs(xml: str) -> str:
    """XML whose entities grow to gigabytes."""
    lines = "".join(f'<!ENTITY l{at} "{f"&l{at - 1};" * 10}">' for at in range(1, 10))
    return f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "lol">{lines}]>{xml}'


def with_part(data: bytes, name: str, content: str) -> bytes:
    """An archive of which one file is another."""
    out = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(data)) as before,
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as after,
    ):
        for entry in before.namelist():
            after.writestr(entry, content if entry == name else before.read(entry))
    return out.getvalue()


def test_hostile_files_are_named_and_the_others_read(tmp_path: Path) -> None:
    word = files.word([("Normal", "Oil the chain.")])
    book = files.epub({"a.xhtml": "<html><body><p>A.</p></body></html>"}, extra={"../../evil.txt": "x"})
    contents = {
        "bomb.docx": bomb("word/document.xml"),
        "bomb.epub": bomb("OPS/a.xhtml"),
        "broken.pdf": files.pdf([[(11, "x")]])[:300],
        "encrypted.pdf": files.pdf([[(11, "x")]], encrypted=True),
        "good.docx": word,
        "good.epub": book,
        "laughs.docx": with_part(word, "word/document.xml", laughs("<x>&l9;</x>")),
        "laughs.xlsx": with_part(
            files.workbook({"a": [[1]]}), "xl/worksheets/sheet1.xml", laughs("<worksheet>&l9;</worksheet>")
        ),
        "laughs.html": laughs("<html><body><p>a&l9;b</p></body></html>").encode(),
        "long.pdf": files.pdf([[]] * 101),
        "many.docx": files.zipped({f"{at}.xml": "" for at in range(1_001)}),
        "nested.html": b"<div>" * 20_000 + b"deep",
        "notes.txt": b"Good.",
    }
    with Parsers(1, Limits(pages=100, entries=1_000)) as parsers:
        found = outcomes(read(tmp_path, contents, parsers))

    assert found.pop("nested.html") in ("", "deep", "is nested too deeply", "is not HTML, or is empty")
    assert "a&l9;b" in found.pop("laughs.html")
    for name in ("bomb.docx", "bomb.epub"):
        ratio = found.pop(name)
        assert ratio.startswith("unpacks to ")
        assert ratio.endswith(" times its size, at most 200 times are read")
    assert found == {
        "broken.pdf": "is damaged",
        "encrypted.pdf": "is encrypted",
        "good.docx": "Oil the chain.",
        "good.epub": "A.",
        "laughs.docx": "declares XML entities in word/document.xml",
        "laughs.xlsx": "declares XML entities in xl/worksheets/sheet1.xml",
        "long.pdf": "has 101 pages, at most 100 are read",
        "many.docx": "packs 1,001 files, at most 1,000 are read",
        "notes.txt": "Good.",
    }
    assert not (tmp_path.parent / "evil.txt").exists()


def test_entities_behind_the_part_that_is_checked_do_not_grow_either(tmp_path: Path) -> None:
    padded = laughs("<w/>").replace('<?xml version="1.0"?>', f'<?xml version="1.0"?><!--{"x" * 5_000}-->')
    body = (
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
        "<w:body><w:p><w:r><w:t>a&l9;b</w:t></w:r></w:p></w:body></w:document>"
    )
    word = with_part(files.word([("Normal", "x")]), "word/document.xml", padded.replace("<w/>", body))
    sheet = with_part(
        files.workbook({"a": [[1]]}),
        "xl/worksheets/sheet1.xml",
        padded.replace("<w/>", "<worksheet>&l9;</worksheet>"),
    )
    with Parsers(1, Limits(cpu_s=5)) as parsers:
        found = outcomes(read(tmp_path, {"a.docx": word, "a.xlsx": sheet, "b.txt": b"Good."}, parsers))
    assert "amplification" in found["a.docx"] or found["a.docx"].count("lol") < 100
    assert found["a.xlsx"].startswith("is damaged, or not a .xlsx file")
    assert found["b.txt"] == "Good."


def test_a_file_beyond_the_size_is_not_opened_by_a_parser(tmp_path: Path) -> None:
    with Parsers(1, Limits(file_bytes=1_000)) as parsers:
        found = outcomes(read(tmp_path, {"a.txt": b"x" * 1_001, "b.txt": b"Good."}, parsers))
    assert found == {"a.txt": "has 1,001 bytes, at most 1,000 are read", "b.txt": "Good."}


@pytest.mark.parametrize(
    ("ocr", "reason"),
    [
        ("killed", "ended its parser (SIGSEGV)"),
        ("endless", "takes more than 1 s of processor time to read"),
        ("waiting", "takes longer than 1 s to read"),
        pytest.param(
            "large",
            "needs more than 2,048 MiB of memory",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="bounds of memory are Linux's"),
        ),
        ("failing", "is damaged, or not a .pdf file (RuntimeError: no such language)"),
    ],
)
def test_what_a_parser_does_ends_nothing_but_its_file(tmp_path: Path, ocr: str, reason: str) -> None:
    limits = Limits(cpu_s=1, wall_s=1 if ocr == "waiting" else 60)
    contents = {"a.txt": b"Good.", "b.pdf": files.pdf([[]]), "c.txt": b"Good, too."}
    with Parsers(1, limits, ocr=f"{OCR}:{ocr}") as parsers:
        found = outcomes(read(tmp_path, contents, parsers))
    assert found == {"a.txt": "Good.", "b.pdf": reason, "c.txt": "Good, too."}


@pytest.mark.skipif(sys.platform != "linux", reason="bounds of memory are Linux's")
@pytest.mark.parametrize(("ocr", "processes"), [("keeping", 2), ("forgetting", 1)])
def test_memory_that_one_file_leaves_behind_does_not_count_against_the_next(
    tmp_path: Path, ocr: str, processes: int
) -> None:
    contents = {name: files.pdf([[]]) for name in ("a.pdf", "b.pdf")}
    with Parsers(1, Limits(memory_bytes=1 << 30), ocr=f"{OCR}:{ocr}") as parsers:
        found = outcomes(read(tmp_path, contents, parsers))
        assert parsers.running <= 1
    assert all(text.startswith("process ") for text in found.values())
    assert len(set(found.values())) == processes


def test_a_parser_has_no_network_where_the_system_takes_it_away(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("networks of their own are Linux's")
    with Parsers(1, ocr=f"{OCR}:connects") as parsers:
        found = outcomes(read(tmp_path, {"a.pdf": files.pdf([[]])}, parsers))
    if found["a.pdf"] == "a network":
        pytest.skip("this system lets nobody have a network of their own")
    assert found == {"a.pdf": "no network"}


def test_files_are_read_in_their_order_by_several_processes(tmp_path: Path) -> None:
    contents = {f"{at:02}.txt": f"Text {at}.".encode() for at in range(20)}
    with Parsers(2) as parsers:
        parsed = read(tmp_path, contents, parsers)
    assert [one.address for one in parsed] == list(contents)
    assert outcomes(parsed) == {name: data.decode() for name, data in contents.items()}


def test_closing_ends_processes_that_are_at_work(tmp_path: Path) -> None:
    path = tmp_path / "a.pdf"
    path.write_bytes(files.pdf([[]]))
    parsers = Parsers(1, Limits(wall_s=600), ocr=f"{OCR}:waiting")
    result: list[Parsed] = []
    thread = threading.Thread(target=lambda: result.append(parsers.read(path, "a.pdf")))
    thread.start()
    while not parsers.running:
        thread.join(0.01)
    parsers.close()
    thread.join()
    assert result[0].document is None
    assert parsers.running == 0


def test_a_reply_that_is_no_document_is_refused() -> None:
    good = {"blocks": [], "links": [], "attributes": {}, "notes": []}
    texts = dict.fromkeys(("address", "title", "author", "language", "date"), "")
    assert wire.unpacked({**good, **texts}).blocks == ()
    for changed in ({"title": 1}, {"blocks": [["x", "", [], 1, 1]]}, {"links": 3}, {"notes": [None]}):
        with pytest.raises((TypeError, ValueError, KeyError)):
            wire.unpacked({**good, **texts, **changed})
    with pytest.raises(wire.StreamError):
        wire.receive(io.BytesIO(wire.LENGTH.pack(1_000) + b"x" * 1_000), 999)
    with pytest.raises(wire.StreamError):
        wire.receive(io.BytesIO(wire.LENGTH.pack(10) + b"x"), 999)


@pytest.mark.parametrize("field", ["title", "blocks", "attributes"])
def test_a_reply_with_half_a_letter_is_refused(field: str) -> None:
    half: dict[str, Any] = {
        "title": "\ud800",
        "blocks": (Block(Kind.PARAGRAPH, "\ud800"),),
        "attributes": {"\ud800": ""},
    }
    document = Document("a.txt", (), title="\U0001f6b2 ö")
    assert wire.unpacked(json.loads(wire.packed(document))) == document
    with pytest.raises(ValueError, match="surrogates not allowed"):
        wire.unpacked(json.loads(wire.packed(replace(document, **{field: half[field]}))))


@pytest.mark.parametrize(
    ("ocr", "said"),
    [("none:f", "ModuleNotFoundError: No module named 'none'"), (f"{OCR}:none", "AttributeError")],
)
def test_ocr_that_cannot_be_loaded_is_said_once(tmp_path: Path, ocr: str, said: str) -> None:
    with Parsers(1, ocr=ocr) as parsers, pytest.raises(ParserError, match=said):
        read(tmp_path, {"a.txt": b"x"}, parsers)


@pytest.mark.parametrize("name", ["file_bytes", "pages", "cpu_s"])
def test_bounds_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, is 0"):
        Limits(**{name: 0})


def addresses(found: list[Found]) -> list[tuple[str, str]]:
    return [(one.address, one.reason) for one in found]


def test_links_and_what_is_no_file_are_named_and_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    (inside / "b").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (inside / "b" / "c.txt").write_text("c")
    (inside / "a.txt").symlink_to(outside / "secret.txt")
    (inside / "d").symlink_to(outside)
    (inside / "e.txt").symlink_to(inside / "b" / "c.txt")
    (inside / "f").symlink_to(inside)
    (inside / "loop").symlink_to("loop")
    (inside / ".hidden.txt").write_text("no")
    os.mkfifo(inside / "pipe.txt")

    assert addresses(list(find([str(inside)]))) == [
        ("a.txt", "is a link out of the folder"),
        ("b/c.txt", ""),
        ("d", "is a link out of the folder"),
        ("e.txt", "is a link"),
        ("f", "is a link"),
        ("loop", "is a link out of the folder"),
        ("pipe.txt", "is not a file"),
    ]
    assert addresses(list(find([str(inside / "d" / "*.txt")]))) == [("secret.txt", "")]
    (link,) = list(find([str(inside / "*" / "secret.txt")]))
    assert link.reason == "is behind a link out of the folder"


def test_a_link_that_replaces_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "a.txt").symlink_to(tmp_path / "secret.txt")
    with Parsers(1) as parsers:
        parsed = parsers.read(tmp_path / "a.txt", "a.txt")
    assert parsed.reason.startswith("cannot be opened")


def test_names_that_could_steer_a_terminal_are_written_out(tmp_path: Path) -> None:
    for name in ("a\x1b[31m.txt", "100%.txt", "..x.txt", os.fsdecode(b"\xff.txt")):
        (tmp_path / name).write_text("x")
    found = [one.address for one in find([str(tmp_path)])]
    assert sorted(found) == ["%FF.txt", "100%25.txt", "a%1B[31m.txt"]


def test_addresses_are_relative_to_the_folder_or_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("c/acme/a.txt", "c/acme/b.md", "d/acme/a.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    monkeypatch.chdir(tmp_path)

    assert [one.address for one in find(["c"])] == ["acme/a.txt", "acme/b.md"]
    assert [one.address for one in find(["c/../c/acme/a.txt"])] == ["c/acme/a.txt"]
    assert [one.address for one in find(["c/**/*.md", "c"])] == ["acme/b.md", "acme/a.txt"]
    assert [one.address for one in find(["c", "d"], Path())] == [
        "c/acme/a.txt",
        "c/acme/b.md",
        "d/acme/a.txt",
    ]
    for given, root, said in (
        (["c", "d"], None, "both have the address 'acme/a.txt'; set --root"),
        (["c"], Path("d"), "c: lies outside of the root"),
        (["none"], None, "none: No such file or directory"),
        (["c/*.pdf"], None, "matches no file"),
    ):
        with pytest.raises(ValueError, match=said):
            list(find(given, root))
