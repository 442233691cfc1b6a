"""Addresses of fsspec: in memory, of this machine, and a local S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evenmesh_documents.document import UnreadableError
from evenmesh_documents.origins.finding import find_all
from evenmesh_documents.origins.found import Found, PathError

fsspec = pytest.importorskip("fsspec")


def contents(files: list[Found]) -> dict[str, bytes | str]:
    return {one.address: one.reason or (one.fetch(1_000) if one.fetch is not None else b"") for one in files}


@pytest.fixture
def memory() -> Iterator[Any]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    for name, data in {
        "/docs/acme/care.md": b"Oil it.",
        "/docs/zeta/shop.csv": b"kind\nthin\n",
        "/docs/.hidden/a.md": b"x",
        "/docs/long.txt": b"x" * 2_000,
        "/other/a.md": b"x",
    }.items():
        system.pipe(name, data)
    yield system
    system.store.clear()


def test_a_folder_gives_its_files_and_none_that_are_hidden_or_beside_it(memory: Any) -> None:
    found = list(find_all(["memory://docs"]))
    assert [one.address for one in found] == ["acme/care.md", "long.txt", "zeta/shop.csv"]
    assert contents([one for one in found if one.address != "long.txt"]) == {
        "acme/care.md": b"Oil it.",
        "zeta/shop.csv": b"kind\nthin\n",
    }
    long = next(one for one in found if one.address == "long.txt")
    assert long.fetch is not None
    with pytest.raises(UnreadableError, match="has 2,000 bytes, at most 1,000 are read"):
        long.fetch(1_000)


def test_a_file_and_a_pattern_give_what_they_name(memory: Any) -> None:
    assert contents(list(find_all(["memory://docs/acme/care.md"]))) == {"care.md": b"Oil it."}
    assert [one.address for one in find_all(["memory://docs/**/*.md"])] == ["acme/care.md"]


def test_a_stamp_changes_with_the_file(memory: Any) -> None:
    def stamps() -> dict[str, str]:
        return {one.address: one.stamp for one in find_all(["memory://docs"])}

    before = stamps()
    assert before == stamps()
    memory.pipe("/docs/acme/care.md", b"Wax it.")
    after = stamps()
    assert {name for name in before if before[name] != after[name]} == {"acme/care.md"}


def test_a_file_that_goes_between_listing_and_fetching_is_named(memory: Any) -> None:
    (one,) = find_all(["memory://docs/acme"])
    memory.rm("/docs/acme/care.md")
    assert one.fetch is not None
    with pytest.raises(UnreadableError, match="is not there any more"):
        one.fetch(1_000)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nothing", "names no file"),
        ("nosuch://docs", "cannot be listed"),
        ("zip://a.md::memory://docs/a.zip", "file system within another"),
    ],
)
def test_what_cannot_be_listed_is_said(memory: Any, url: str, message: str) -> None:
    with pytest.raises(PathError, match=message):
        list(find_all([url]))


def test_two_files_of_one_address_are_refused(memory: Any) -> None:
    memory.pipe("/more/acme/care.md", b"x")
    with pytest.raises(PathError, match="both have the address"):
        list(find_all(["memory://docs", "memory://more"]))
    assert len(list(find_all(["memory://docs", "memory://docs"]))) == 3


def test_an_address_of_this_machine_is_read_as_its_path_so_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a b.md").write_text("x")
    (tmp_path / "link.md").symlink_to("/etc/passwd")
    found = list(find_all([f"file://{tmp_path}"]))
    assert [(one.address, one.reason) for one in found] == [
        ("a b.md", ""),
        ("link.md", "is a link out of the folder"),
    ]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket of a local S3 server."""
    pytest.importorskip("pyarrow.fs")
    s3_server = pytest.importorskip("tests.support.s3_server")  # which needs httpx
    with s3_server.s3_server() as address:
        for name, value in {**s3_server.ENVIRONMENT, "AWS_ENDPOINT_URL": address}.items():
            monkeypatch.setenv(name, value)
        s3_server.put(f"{address}/handbooks", b"")
        yield f"{address}/handbooks"


def test_a_bucket_is_listed_and_fetched(bucket: str) -> None:
    from tests.support.s3_server import put

    for name, data in {"docs/acme/care.md": b"Oil it.", "docs/long.txt": b"x" * 2_000, "e.md": b""}.items():
        put(f"{bucket}/{name}", data)
    found = list(find_all(["s3://handbooks"]))
    assert [one.address for one in found] == ["docs/acme/care.md", "docs/long.txt", "e.md"]
    assert contents([found[0], found[2]]) == {"docs/acme/care.md": b"Oil it.", "e.md": b""}
    assert found[1].fetch is not None
    with pytest.raises(UnreadableError, match="has 2,000 bytes, at most 1,000 are read"):
        found[1].fetch(1_000)
    # What was listed before is not what is there now.
    put(f"{bucket}/docs/acme/care.md", b"Wax it twice.")
    again = list(find_all(["s3://handbooks/docs/acme"]))
    assert contents(again) == {"care.md": b"Wax it twice."}
    assert again[0].stamp not in ("", found[0].stamp)
    with pytest.raises(PathError, match=r"cannot be listed|names no file"):
        list(find_all(["s3://nobody"]))
