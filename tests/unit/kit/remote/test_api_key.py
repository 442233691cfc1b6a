"""The key of a model server, as its file has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evenmesh_kit.remote.api_key import MOST_CHARACTERS, ApiKeyError, ApiKeyFile, Secret


def test_a_secret_is_in_no_text() -> None:
    secret = Secret("sk-1")
    assert "sk-1" not in f"{secret} {secret!r} {[secret]}"
    assert secret.reveal() == "sk-1"
    assert secret == Secret("sk-1") != Secret("sk-2")
    assert len({secret, Secret("sk-1")}) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no key"),
        (b" \n", "holds no key"),
        (b"sk 1", "without blanks"),
        (b"sk-1\nsk-2", "without blanks"),
        ("clé".encode(), "printable ASCII"),
        (b"k" * (MOST_CHARACTERS + 1), f"at most {MOST_CHARACTERS}"),
    ],
)
def test_a_file_without_a_key_is_refused_by_name_and_not_quoted(
    content: bytes, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(ApiKeyError, match=said) as caught:
        ApiKeyFile(path)
    assert str(path) in str(caught.value)
    assert "sk" not in str(caught.value).removeprefix(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ApiKeyError, match="No such file"):
        ApiKeyFile(tmp_path / "key")


def test_a_new_key_is_read_and_an_unusable_file_leaves_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("first\n")
    file = ApiKeyFile(path, every_s=0)
    assert file.key().reveal() == "first"
    for number, (content, expected) in enumerate((("second", "second"), ("", "second"), ("third", "third"))):
        path.write_text(content)
        os.utime(path, (number + 1, number + 1))  # a change of the same second counts, too
        assert file.key().reveal() == expected
