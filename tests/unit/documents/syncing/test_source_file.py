"""The file of named sources: what is written is read again, and what is none is named."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from evenmesh.commands.ingest import LexicalOptions
from evenmesh_documents.options import PassageOptions, ReadingOptions
from evenmesh_documents.syncing import source_file
from evenmesh_documents.syncing.source_file import SourceFileError, load, made, parsed, save

HERE = Path("/etc/evenmesh/sources.yaml")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "sources.yaml"
    one = made(
        "docs",
        "bikes",
        ["docs", "/srv/more", "s3://bucket/folder"],
        "12h",
        ReadingOptions(root=Path("docs"), jobs=3, limit=["pages=9"]),
        PassageOptions(size=64, tokenizer="words", provider=["folder"], base_url="https://d.example/"),
        LexicalOptions(analyzer="english", k1=0.9),
        tmp_path,
    )
    other = made(
        "more",
        "cars",
        ["x"],
        "0",
        ReadingOptions(),
        PassageOptions(tokenizer="bundled"),
        LexicalOptions(),
        tmp_path,
    )
    assert load(path) == {}
    save(path, {"docs": one, "more": other})
    assert load(path) == {"docs": one, "more": other}
    assert one.paths == (str(tmp_path / "docs"), "/srv/more", "s3://bucket/folder")
    assert one.reading.root == tmp_path / "docs"
    # How many files are read at a time is of the machine, not of the source.
    assert one.reading.jobs is None
    assert [item.name for item in path.parent.iterdir()] == ["sources.yaml"]


def test_a_file_by_hand_may_be_short_and_its_paths_are_relative_to_it() -> None:
    found = parsed(
        b"sources:\n  docs:\n    collection: bikes\n    paths: handbooks\n    tokenizer: words\n", HERE
    )
    assert found["docs"].paths == ("/etc/evenmesh/handbooks",)
    assert found["docs"].grace_time == timedelta(days=1)


def test_a_source_states_its_tokenizer_so_that_machines_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, tokenizer in ((True, "bundled"), (False, "words")):
        monkeypatch.setattr("evenmesh_documents.counting.bundled_is_there", lambda there=there: there)
        one = made(
            "docs", "bikes", ["x"], "1d", ReadingOptions(), PassageOptions(), LexicalOptions(), Path("/")
        )
        assert one.passages.tokenizer == tokenizer


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90", 90), ("90s", 90), ("30m", 1_800), ("12h", 43_200), ("1d", 86_400)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert source_file.duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "-1", "1w", "1.5h", "3651d", "999999999d", "1 d", "१d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a number with s, m, h or d"):
        source_file.duration(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: [", "line 1: is not YAML"),
        ("", "must have `sources`"),
        ("[]", "must have `sources`"),
        ("sources: {}\nmore: 1", "must have `sources`"),
        ("sources: {docs: 1}", "docs: must have collection and paths"),
        ("sources: {1: {collection: b, paths: x}}", "a source: the name of a source must be a text"),
        ("sources: {Docs: {collection: b, paths: x}}", "Docs: the name of a source must be 1 to 32"),
        ("sources: {docs: {collection: b}}", "docs: paths must be a list of texts"),
        ("sources: {docs: {collection: b, paths: []}}", "docs: paths must be 1 to 1,000"),
        ("sources: {docs: {collection: b, paths: [1]}}", "docs: paths must be a list of texts"),
        ('sources: {docs: {collection: b, paths: ["a\\0"]}}', "or with NUL characters"),
        ("sources: {docs: {collection: B, paths: x}}", "docs: collection must be 1 to 64"),
        ("sources: {docs: {paths: x}}", "docs: collection must be a text"),
        ("sources: {docs: {collection: b, paths: x, grace: soon}}", "docs: grace must be a number"),
        ("sources: {docs: {collection: b, paths: x, grace: 1.5}}", "docs: grace must be a number"),
        ("sources: {docs: {collection: b, paths: x, jobs: 3}}", "docs: has 'jobs'; there are collection"),
        ("sources: {docs: {collection: b, paths: x, size: big}}", "docs: size must be a number"),
        ("sources: {docs: {collection: b, paths: x, size: true}}", "docs: size must be a number"),
        ("sources: {docs: {collection: b, paths: x, root: 3}}", "docs: root must be a text"),
        ("sources: {docs: {collection: b, paths: x, limit: [3]}}", "docs: limit must be a list of texts"),
    ],
)
def test_what_is_no_source_is_named(text: str, message: str) -> None:
    with pytest.raises(SourceFileError) as refused:
        parsed(text.encode(), HERE)
    assert str(refused.value).startswith(f"{HERE}: ")
    assert message in str(refused.value)


def test_a_file_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "sources.yaml"
    path.write_bytes(b"#" * (source_file.MAX_BYTES + 1))
    with pytest.raises(SourceFileError, match="has more than 1,048,576 bytes"):
        load(path)
    with pytest.raises(SourceFileError, match="at most 1,000 are read"):
        parsed(b"sources: {" + b", ".join(b"s%d: 1" % one for one in range(1_001)) + b"}", HERE)


def test_a_file_that_cannot_be_written_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sources.yaml"
    one = made("docs", "bikes", ["x"], "1d", ReadingOptions(), PassageOptions(), LexicalOptions(), tmp_path)
    save(path, {"docs": one})
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(path, {})
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["sources.yaml"]
