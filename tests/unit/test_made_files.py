"""Committed files that Node's tools made: they are what their sources say, and a change of either is noticed."""

from __future__ import annotations

import pytest

from tests.made_files import CLIENT, EVERYTHING, ROOT, Made, differences, files, lines


@pytest.mark.parametrize("name", EVERYTHING)
def test_what_was_made_is_what_its_sources_say(name: str) -> None:
    made = EVERYTHING[name]
    assert differences(made) == [], f"run {made.command}"
    assert all(list(files(pattern)) for pattern in (*made.made, made.sources[0]))


def test_a_changed_a_new_and_a_removed_file_are_noticed() -> None:
    made = EVERYTHING["typescript"]
    assert differences(Made("", made.listed, made.sources[1:], made.made)) == list(files("protos/*.proto"))
    more = Made("", made.listed, (*made.sources, "protos/buf.yaml"), made.made)
    assert differences(more) == ["protos/buf.yaml"]
    assert lines(made) == (ROOT / made.listed).read_text(encoding="utf-8").splitlines()


def test_locks_of_npm_name_no_host() -> None:
    for folder in (CLIENT, "console"):
        lock = (ROOT / folder / "package-lock.json").read_text(encoding="utf-8")
        assert '"resolved"' not in lock
        assert lock.count('"integrity": "sha512-') > 10
