"""What a run leaves beside its model: numbers from its log, and nothing beyond the checkpoint."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from evenmesh_training.rankrag import record
from evenmesh_training.rankrag.checkpoints import Progress

SETTINGS: dict[str, Any] = {
    "recipe": {"name": "mine"},
    "stage": 2,
    "batch_size": 4,
    "learning_rate": 1e-3,
    "steps": 30,
    "processes": 2,
    "seed": 1,
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / record.SETTINGS).write_text(json.dumps(SETTINGS))
    lines = ["step,answer,loss,rate,norm,seconds"]
    lines += [f"{step},{step},{2 * step},0.1,1,2" for step in range(1, 28)]
    (folder / record.LOG).write_text("\n".join(lines) + "\n")
    (folder / record.EVALUATIONS).write_text("step,gold_em,ranking_auc\n10,0.5,0.75\n20,0.625,0.875\n")
    return folder


def written(run: Path, output: Path, steps: int = 25, start: Path | None = None) -> dict[str, Any]:
    output.mkdir()
    record.write(run, output, Progress(steps, 50.04), start=start)
    found: dict[str, Any] = json.loads((output / record.TRAINING).read_text())
    return found


def test_the_record_is_the_settings_and_what_was_done(run: Path, tmp_path: Path) -> None:
    found = written(run, tmp_path / "out")
    assert (found["steps"], found["planned"], found["seconds"], found["processes"]) == (25, 30, 50.0, 2)
    assert found["stage"] == {"batch_size": 4, "learning_rate": 1e-3, "steps": 30}
    assert found["recipe"] == {"name": "mine"}
    assert found["blend"] is None
    assert found["start"] is None
    assert "cores of" in found["hardware"]
    assert "torch" in found["software"]


def test_the_curve_is_means_up_to_the_checkpoint(run: Path, tmp_path: Path) -> None:
    written(run, tmp_path / "out")
    with (tmp_path / "out" / record.CURVE).open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["step"] for row in rows] == ["10", "20", "25"]
    # the mean of 1 to 10 is (1 + 10) / 2, of 21 to 25 (21 + 25) / 2
    assert [float(row["answer"]) for row in rows] == [(1 + 10) / 2, (11 + 20) / 2, (21 + 25) / 2]
    assert [float(row["loss"]) for row in rows] == [2 * (1 + 10) / 2, 2 * (11 + 20) / 2, 2 * (21 + 25) / 2]
    assert (tmp_path / "out" / record.PLOT).read_bytes().startswith(b"\x89PNG")


def test_what_it_started_from_and_what_went_in_are_reported(run: Path, tmp_path: Path) -> None:
    (run / record.BLEND).write_text('{"sources": []}')
    first = tmp_path / "first"
    written(run, first, steps=5)
    (first / record.EVALUATION).write_text('{"measures": []}')
    second = written(run, tmp_path / "second", start=first)
    assert second["blend"] == {"sources": []}
    assert second["start"]["steps"] == 5
    assert second["start"]["evaluation"] == {"measures": []}
    assert written(run, tmp_path / "third", start=tmp_path / "nowhere")["start"] is None
