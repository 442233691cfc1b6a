"""Archives: what is within them is read in memory, and hostile ones cost no more than their bounds."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import tarfile
import tracemalloc
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from evenmesh_documents import Limits, Parsers, Splitting
from evenmesh_documents.attribution import Attribution
from evenmesh_documents.gathering import Gathered, Spool, gather
from evenmesh_documents.origins.archives import expanded
from evenmesh_documents.origins.found import Found, find

MANY = Limits()


def zipped(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def tarred(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def within(tmp_path: Path, name: str, data: bytes, limits: Limits = MANY) -> dict[str, bytes | str]:
    """What an archive is expanded to: of each address its bytes, or why it is not read."""
    path = tmp_path / name
    path.write_bytes(data)
    return {
        one.address: one.reason or (one.fetch(1 << 30) if one.fetch is not None else b"")
        for one in expanded([Found(path, name)], limits)
    }


FILES = {"acme/care.md": b"Oil it.", "zeta/shop.csv": b"kind,price\nthin,3\n"}
MADE = {
    "a.zip": zipped(FILES),
    "a.ZIP": zipped(FILES, zipfile.ZIP_STORED),
    "b.zip": zipped(FILES, zipfile.ZIP_BZIP2),
    "a.tar": tarred(FILES),
    "a.tar.gz": gzip.compress(tarred(FILES)),
    "a.tgz": gzip.compress(tarred({f"./{name}": data for name, data in FILES.items()})),
    "a.tar.bz2": bz2.compress(tarred(FILES)),
}


@pytest.mark.parametrize("name", MADE)
def test_every_kind_gives_its_files(tmp_path: Path, name: str) -> None:
    assert within(tmp_path, name, MADE[name]) == {f"{name}/{one}": data for one, data in FILES.items()}


def test_archives_within_archives_are_read_down_to_a_depth(tmp_path: Path) -> None:
    deep = zipped({"c.zip": zipped({"d.md": b"deep"}), "b.md": b"b"})
    found = within(
        tmp_path, "a.zip", zipped({"in.tgz": gzip.compress(tarred({"x.zip": deep, "a.md": b"a"}))})
    )
    assert found == {
        "a.zip/in.tgz/x.zip": "is an archive within 2 others",
        "a.zip/in.tgz/a.md": b"a",
    }
    found = within(tmp_path, "a.zip", zipped({"in.zip": deep}), Limits(archive_depth=9))
    assert found == {"a.zip/in.zip/c.zip/d.md": b"deep", "a.zip/in.zip/b.md": b"b"}


@pytest.mark.parametrize("made", [zipped, tarred])
def test_names_that_lead_out_are_named_and_never_used(tmp_path: Path, made: object) -> None:
    name = "a.zip" if made is zipped else "a.tar"
    data = made(
        {"../out.md": b"x", "/etc/out.md": b"x", "a/../../out.md": b"x", "in.md": b"in", ".x.md": b""}
    )  # type: ignore[operator]
    found = within(tmp_path, name, data)
    assert found.pop(f"{name}/in.md") == b"in"
    assert len(found) == 3
    assert set(found.values()) == {"has a name that leads out of its archive, or is none"}
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_links_devices_and_repeated_names_are_named(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind in (("s", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE), ("f", tarfile.FIFOTYPE)):
            entry = tarfile.TarInfo(f"{name}.md")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        for data in (b"first", b"second"):
            entry = tarfile.TarInfo("twice.md")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    path = tmp_path / "a.tar"
    path.write_bytes(out.getvalue())
    found = [(one.address, one.reason) for one in expanded([Found(path, "a.tar")], MANY)]
    assert found == [
        ("a.tar/s.md", "is a link"),
        ("a.tar/h.md", "is a link"),
        ("a.tar/f.md", "is not a file"),
        ("a.tar/twice.md", ""),
        ("a.tar/twice.md", "has a name that its archive has already"),
    ]
    link = zipfile.ZipInfo("s.md")
    link.external_attr = 0o120777 << 16
    zip_out = io.BytesIO()
    with zipfile.ZipFile(zip_out, "w") as made:
        made.writestr(link, "/etc/passwd")
    assert within(tmp_path, "b.zip", zip_out.getvalue()) == {"b.zip/s.md": "is a link"}


def test_an_encrypted_file_and_a_method_with_any_memory_are_named(tmp_path: Path) -> None:
    data = bytearray(zipped({"a.md": b"secret", "b.md": b"open"}))
    directory = data.index(b"PK\x01\x02")
    data[6] |= 1
    data[directory + 8] |= 1
    assert within(tmp_path, "a.zip", bytes(data)) == {"a.zip/a.md": "is encrypted", "a.zip/b.md": b"open"}
    found = within(tmp_path, "b.zip", zipped({"a.md": b"x"}, zipfile.ZIP_LZMA))
    assert found == {"b.zip/a.md": "is packed by a method that is not read"}


ZEROS = b"\0" * (8 << 20)


@pytest.mark.parametrize("name", ["a.zip", "a.tar.gz", "a.tar.bz2"])
def test_what_grows_too_much_is_ended(tmp_path: Path, name: str) -> None:
    files = {"a.md": b"first", "bomb.md": ZEROS, "z.md": b"last"}
    made = {
        "a.zip": lambda: zipped(files),
        "a.tar.gz": lambda: gzip.compress(tarred(files)),
        "a.tar.bz2": lambda: bz2.compress(tarred(files)),
    }[name]()
    found = within(tmp_path, name, made)
    assert found == {f"{name}/a.md": b"first", name: "unpacks to more than 200 times its size"}
    few = Limits(unpacked_bytes=1 << 20, unpacked_ratio=1 << 20)
    assert str(within(tmp_path, name, made, few)[name]).startswith("unpacks to more than 1,048,576 bytes")
    assert within(tmp_path, name, made, Limits(file_bytes=1 << 20))[f"{name}/bomb.md"] == (
        "has 8,388,608 bytes, at most 1,048,576 are read"
    )


def test_bombs_within_an_archive_share_its_bounds(tmp_path: Path) -> None:
    inner = zipped({"bomb.md": ZEROS})
    found = within(tmp_path, "a.zip", zipped({f"{at}.zip": inner for at in range(4)}, zipfile.ZIP_STORED))
    # The first uses all that the archive may take, so nothing after it is unpacked.
    said = "unpacks to more than 200 times its size"
    assert found == {"a.zip/0.zip": said, "a.zip": said}


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    files = {f"{at}.md": b"x" for at in range(12)}
    assert within(tmp_path, "a.zip", zipped(files), Limits(entries=10)) == {
        "a.zip": "packs 12 files, at most 10 are read"
    }
    found = within(tmp_path, "a.tar", tarred(files), Limits(entries=10))
    assert found["a.tar"] == "packs more than 10 files"
    assert len(found) == 11


@pytest.mark.parametrize("size", [(1 << 20) + 1, 4 << 30])
@pytest.mark.parametrize(
    "kind",
    [
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.SOLARIS_XHDTYPE,
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
    ],
)
def test_a_long_header_takes_no_memory(tmp_path: Path, kind: bytes, size: int) -> None:
    entry = tarfile.TarInfo("pax")
    entry.type, entry.size = kind, size
    data = gzip.compress(entry.tobuf(tarfile.USTAR_FORMAT) + ZEROS)
    tracemalloc.start()
    found = within(tmp_path, "a.tar.gz", data)
    assert tracemalloc.get_traced_memory()[1] < 64 << 20
    tracemalloc.stop()
    assert found == {"a.tar.gz": "has a header of more than 1,048,576 bytes"}


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.bz2"])
@pytest.mark.parametrize(
    "data",
    [b"", b"PK", b"no archive at all" * 99, gzip.compress(b"no archive" * 99)],
    ids=["empty", "cut", "text", "gzip"],
)
def test_what_is_no_archive_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    found = within(tmp_path, name, data)
    assert found in ({name: "is damaged, or no archive of its ending"}, {})


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tar.bz2"])
def test_a_cut_archive_gives_what_is_whole_and_is_named(tmp_path: Path, name: str) -> None:
    for size in (len(MADE[name]) // 3, len(MADE[name]) - 40):
        found = within(tmp_path, name, MADE[name][:size])
        whole = {one for one, said in found.items() if isinstance(said, bytes)}
        assert whole <= {f"{name}/{one}" for one in FILES}
        assert all(found[one] == FILES[one.removeprefix(f"{name}/")] for one in whole)


def gathered(folder: Path, spool: Spool, limits: Limits = MANY) -> Gathered:
    with Parsers(2, limits) as parsers:
        return gather(
            list(find([str(folder)])), parsers, spool, splitting=Splitting(), attribution=Attribution()
        )


def test_a_folder_with_archives_becomes_passages_with_their_place(tmp_path: Path) -> None:
    lines = json.dumps({"id": "p1", "text": "Wash it."}).encode()
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "all.zip").write_bytes(zipped({**FILES, "more.jsonl": lines, "x.png": b""}))
    (tmp_path / "broken.zip").write_bytes(b"PK")
    with Spool() as spool:
        found = gathered(tmp_path, spool)
        places = {one.attributes.get("document", one.id): one.provider for one in spool}
    assert places == {"acme/all.zip/acme/care.md": "acme", "acme/all.zip/zeta/shop.csv": "acme", "p1": ""}
    assert found.files == 3
    assert [(one.address, one.reason) for one in found.skipped] == [
        ("acme/all.zip/x.png", "has no reader for .png"),
        ("broken.zip", "is damaged, or no archive of its ending"),
    ]
