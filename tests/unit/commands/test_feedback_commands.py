"""``evenmesh feedback`` as a user calls it."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evenmesh import Client
from evenmesh.commands import main
from evenmesh.types.feedback import StoredFeedback


@pytest.mark.parametrize(
    ("said", "hour"), [("T12:00:00", 12), ("T12:00:00Z", 12), ("T12:00:00+02:00", 12 - 2), ("", 0)]
)
def test_a_time_with_a_zone_is_meant_so_and_one_without_is_utc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, hour: int
) -> None:
    asked: list[Any] = []

    def nothing(mesh: Client, *, since: datetime, **_: object) -> Iterator[StoredFeedback]:
        asked.append(since)
        return iter(())

    monkeypatch.setattr(Client, "export_feedback", nothing)
    assert main(["feedback", "export", str(tmp_path / "out.parquet"), "--since", f"2026-11-22{said}"]) == 0
    assert asked == [datetime(2026, 11, 22, hour, tzinfo=UTC)]


@pytest.mark.parametrize("command", [["feedback", "export"], ["collection", "export", "demo"]])
def test_a_file_of_another_name_than_parquet_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, str(tmp_path / "out.jsonl")]) == 1
    assert "name the file out.parquet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("agent", [["--task", "t", "--model", "m"], []])
def test_an_agent_without_versions_learns_that_others_rank_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], agent: list[str]
) -> None:
    monkeypatch.setattr(Client, "models", lambda *_, **__: [])
    monkeypatch.setattr(Client, "training_status", lambda *_, **__: SimpleNamespace(trainings=()))
    assert main(["models", "list", *agent]) == 0
    assert ("of its own" in capsys.readouterr().out) == bool(agent)
