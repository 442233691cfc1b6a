"""Ids of a source's passages say the source and the file, whatever addresses hold."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evenmesh_documents.document import UnreadableError
from evenmesh_documents.syncing import naming
from evenmesh_documents.syncing.naming import covering, file_key, file_of, named, prefix_of

segments = st.text(
    st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/"), min_size=1, max_size=80
)
addresses = st.lists(segments, min_size=1, max_size=5).map("/".join)


@given(addresses, st.text("0123456789abcdef#-", min_size=1, max_size=16))
def test_an_id_says_the_source_and_the_file_and_is_no_longer_than_ids_are(address: str, own: str) -> None:
    made = named("s" * 32, address, own)
    assert made.startswith(prefix_of("s" * 32))
    assert file_of("s" * 32, made) == file_key(address)
    assert len(made.encode()) <= 256


@given(addresses, addresses)
def test_two_files_never_share_a_key(first: str, second: str) -> None:
    if first.replace("#", "%23") != second.replace("#", "%23"):
        assert file_key(first) != file_key(second)


@given(addresses, addresses)
@example("a" * 176 + "/\U00010000", "b" * 40)
@example("a" * 177 + "\U00010000", "b" * 40)
def test_what_cannot_be_read_covers_itself_and_all_within(folder: str, name: str) -> None:
    for addresses in ([folder], ["b", folder, "c/d"]):
        assert covering(addresses)(file_key(folder))
        assert covering(addresses)(file_key(f"{folder}/{name}"))
    assert covering(["."])(file_key(name))
    assert not covering([])(file_key(name))


def test_it_covers_no_neighbour() -> None:
    covers = covering(["docs", "guides/a.md", "a/much/longer/folder/than/these"])
    assert not covers(file_key("docs-2/a.md"))
    assert not covers(file_key("guides/a.md.txt"))
    assert not covers(file_key("guides"))
    assert not covers(file_key("a/much"))


def test_an_id_that_would_be_too_long_is_refused() -> None:
    with pytest.raises(UnreadableError, match="has an id of more than 256 bytes"):
        named("s", "a" * 300, "x" * 60)


def test_many_addresses_are_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def counted(address: str) -> str:
        made.append(address)
        return file_key(address)

    monkeypatch.setattr(naming, "file_key", counted)
    covers = covering(f"pages/{number}" for number in range(100))
    assert [covers(f"pages/{number}/a") for number in range(200)] == [True] * 100 + [False] * 100
    assert len(made) == 100
