"""``python -m evenmesh_training.bundled.texts``: write hashes of what the bundled models were trained on.

The texts are read again from the data sets that the models' records name, and in doubt more than were used:
all questions of a split where the record says only how many were drawn of it. All trainings of a model are
one here, as most of their questions are the same.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import evenmesh_models
from evenmesh_lab.files.trained_texts import TrainedTexts, TrainingTexts, write_trained_texts
from evenmesh_training.bundled import reranker_lists
from evenmesh_training.ium.plan import TRAIN
from evenmesh_training.rankrag import recipe as recipes
from evenmesh_training.rankrag.data.blend import Blend
from evenmesh_training.rankrag.data.datasets import default_data, rows

Texts = tuple[list[str], list[str]]
"""Questions and passages."""

_WIKI: Final = "wiki-multitask"
_TASKS: Final = frozenset({"qa-span", "qa-open", "qa-multihop", "slot-dob", "slot-degree"})
"""Tasks of the agents that the cross-encoder learned from, as ``agents.toml`` has them."""


def main() -> int:
    """Write a file beside the weights of each model, and print its size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=None, help="folder of the data sets")
    data = parser.parse_args().data or default_data()
    models = (
        (evenmesh_models.reader(), "SQuAD, then the recipe bundled", reader(data)),
        (evenmesh_models.cross_encoder(), "SQuAD, agents of wiki-multitask, lists", cross_encoder(data)),
    )
    for folder, name, (questions, passages) in models:
        trained = TrainedTexts((TrainingTexts.of(name, questions, passages),), (evenmesh_models.MINILM,))
        path = write_trained_texts(trained, folder)
        sys.stdout.write(
            f"{path}: {path.stat().st_size:,} bytes; {trained.num_questions:,} questions, "
            f"{trained.num_passages:,} passages; {trained.false_positives:.2%} of other texts by chance\n"
        )
    return 0


def reader(data: Path) -> Texts:
    """Return what the bundled reader was trained on: SQuAD, before any of it was left out, and its recipe.

    Raises:
        SystemExit: a data set of the recipe is missing.
    """
    blend = Blend(recipes.load("bundled"), data)
    missing = [row.source.name for row in blend.rows if row.missing and not _refused(row.missing)]
    if missing:
        raise SystemExit(f"the data sets of {', '.join(missing)} are missing under {data}")
    return _together(_squad(data), blend.texts())


def cross_encoder(data: Path) -> Texts:
    """Return what the bundled cross-encoder was trained on: SQuAD, agents' feedback, lists.

    Its upper layers began as those of a reader of SQuAD.
    """
    return _together(_squad(data), _agents(data), *reranker_lists.texts(data))


def _squad(data: Path) -> Texts:
    folder = data / "squad-open"
    return (
        [row["question"] for row in rows(folder / "questions.train.jsonl.gz")],
        [row["text"] for row in rows(folder / "passages.train.jsonl.gz")],
    )


def _agents(data: Path) -> Texts:
    tasks = rows(data / _WIKI / "tasks.jsonl.gz")
    return (
        [row["input"] for row in tasks if row["split"] == TRAIN and row["agent"] in _TASKS],
        [row["text"] for row in rows(data / _WIKI / "passages.jsonl.gz")],
    )


def _together(*some: Texts) -> Texts:
    return [one for questions, _ in some for one in questions], [one for _, found in some for one in found]


def _refused(why: str) -> bool:
    return "is not for this recipe" in why


if __name__ == "__main__":
    sys.exit(main())
