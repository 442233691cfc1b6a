"""Small data sets in the shared folder's form, and recipes over them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evenmesh_training.rankrag.recipe import Recipe, parse
from tests.unit.training.rankrag.towns import TOWNS, Write, passage, question


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty data folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.fixture
def write(root: Path) -> Write:
    """Writes rows to a gzipped JSON-lines file below ``root``."""

    def write(name: str, rows: Sequence[dict[str, Any]]) -> None:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as stream:
            for row in rows:
                stream.write(json.dumps(row) + "\n")

    return write


@pytest.fixture
def squad(root: Path, write: Write) -> Path:
    """squad-open with twelve towns to train on and four to keep."""
    write("squad-open/passages.train.jsonl.gz", [passage(town) for town in TOWNS])
    write("squad-open/questions.train.jsonl.gz", [question(town) for town in TOWNS])
    kept = ("Muri", "Naters", "Olten", "Pfyn")
    write("squad-open/passages.dev.jsonl.gz", [passage(town, prefix="d") for town in kept])
    write("squad-open/questions.dev.jsonl.gz", [question(town, prefix="d") for town in kept])
    return root


STAGE = """
[stage2]
steps = 6
batch_size = 4
micro_batch = 2
learning_rate = 1e-3
warm_up = 2
decay = 2
bf16 = false
ema = 0.9
max_length = 200
max_target = 12
evaluate_every = 6
evaluate_examples = 3
checkpoint_every = 100
"""


@pytest.fixture
def recipe() -> Recipe:
    """Three kinds of examples from squad-open, and a short stage 2."""
    return parse(
        """
name = "tiny"
seed = 5

[context]
passages = 3
depth = 5
unanswerable = 0.3
cut_sentences = 0.5

[[source]]
name = "rich"
dataset = "squad-open"
kind = "context-rich-qa"
ratio = 2

[[source]]
name = "augmented"
dataset = "squad-open"
kind = "retrieval-augmented-qa"
ratio = 1

[[source]]
name = "ranking"
dataset = "squad-open"
kind = "context-ranking"
ratio = 1

[[evaluation]]
dataset = "squad-open"
"""
        + STAGE,
        origin="tiny",
    )
