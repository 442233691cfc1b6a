"""Credentials of calls that go out: read at every call, and reported as an error where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenmesh import AsyncClient, Client
from evenmesh.wire.credentials import Credential
from evenmesh.wire.errors import Unavailable


def test_a_token_is_read_at_every_call(tmp_path: Path) -> None:
    credential = Credential(file=tmp_path / "token")
    for text in ("one", "two"):
        (tmp_path / "token").write_text(f"{text}\n")
        assert credential.metadata() == (("authorization", f"Bearer {text}"),)
    assert credential.tokens is not None
    assert (credential.tokens.stale(), credential.tokens.failures) == (False, 0)
    (tmp_path / "token").unlink()
    for _ in range(2):  # counted when it begins to fail, however many calls are made meanwhile
        with pytest.raises(Unavailable):
            credential.metadata()
    assert (credential.tokens.stale(), credential.tokens.failures) == (True, 1)
    (tmp_path / "token").write_text("three")
    assert (credential.tokens.stale(), credential.tokens.failures) == (False, 1)


@pytest.mark.parametrize("content", [None, "otter \N{OTTER}"])
async def test_a_token_that_cannot_be_read_is_reported_by_every_kind_of_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    monkeypatch.setenv("EVENMESH_TOKEN_FILE", str(path))
    async with AsyncClient("127.0.0.1:9", timeout=20) as client:
        for call in (client.collections(), client.answer("q"), client.converse().answer("q")):
            with pytest.raises(Unavailable, match="EVENMESH_TOKEN_FILE cannot be read"):
                await call
    with Client("127.0.0.1:9", timeout=20) as sync:
        for ask in (sync.collections, lambda: sync.answer("q"), lambda: sync.converse().answer("q")):
            with pytest.raises(Unavailable, match="EVENMESH_TOKEN_FILE cannot be read"):
                ask()
