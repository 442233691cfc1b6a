"""Twelve towns as tasks and passages, in wiki-multitask's form."""

import json
from pathlib import Path

import pytest

from tests.unit.training.rankrag.towns import TOWNS, passage


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    """A tasks file, its passages beside it: nine towns to train on, three to keep."""
    folder = tmp_path / "towns"
    folder.mkdir()
    lines = [
        {
            "id": f"q-{town}",
            "agent": "mayor" if at % 2 else "day",
            "task": "qa" if at % 2 else "slot_filling",
            "input": f"Who is the mayor of {town}?" if at % 2 else f"{town} [SEP] market",
            "answers": [f"{town}son Keller" if at % 2 else "Monday"],
            "gold_passage_ids": [f"p-{town}"],
            "split": "train" if at < 9 else "dev",
            "source": "towns",
        }
        for at, town in enumerate(TOWNS)
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "passages.jsonl").write_text("".join(json.dumps(passage(town)) + "\n" for town in TOWNS))
    return folder / "tasks.jsonl"
