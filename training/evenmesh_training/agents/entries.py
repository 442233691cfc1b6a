"""Write agents as the file that the commands of iterative utility maximisation read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from evenmesh_lab.files.records import replace_file

EXACT_MATCH: Final = "exact-match"
ACCURACY: Final = "accuracy"
UTILITIES: Final = (EXACT_MATCH, ACCURACY, "token-f1")
"""Utilities that an agent's answers may be measured by."""

_QUESTIONS: Final = "qa"


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """One agent: which inputs it is asked, by which model of the generator, how, and what counts.

    ``passages`` that it is shown.
    """

    task_id: str
    model_id: str
    model: str
    augmentation: str
    template: str
    utility: str
    dataset: str
    passages: int
    tasks_file: Path
    collection: str


def utility_of(kind: str) -> str:
    """Return the paper's utility of a kind of task: exact match for questions, else accuracy."""
    return EXACT_MATCH if kind.startswith(_QUESTIONS) else ACCURACY


def write_entries(path: Path, entries: Sequence[AgentEntry]) -> None:
    """Write agents as TOML.

    Raises:
        OSError: the file cannot be written.
    """
    lines = [
        "[data]",
        f"tasks = {_quoted(str(entries[0].tasks_file.resolve()))}",
        f"collection = {_quoted(entries[0].collection)}",
    ]
    for one in entries:
        lines += ["", "[[agent]]"]
        for name in ("task_id", "model_id", "model", "augmentation", "template", "utility", "dataset"):
            lines.append(f"{name} = {_quoted(getattr(one, name))}")
        lines.append(f"passages = {one.passages}")
    replace_file(path, lambda target: target.write_text("\n".join(lines) + "\n", encoding="utf-8"))


def _quoted(text: str) -> str:
    # TOML's basic strings take JSON's escapes
    return json.dumps(text, ensure_ascii=False)
