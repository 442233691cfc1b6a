"""MIRAGE's ``benchmark.json``, as its authors publish it: questions by data set, with options and a letter.

Source: Xiong et al. 2024, "Benchmarking Retrieval-Augmented Generation for Medicine".
"""

from __future__ import annotations

import json
from pathlib import Path

from evenmesh_lab.files.lines import whole_text


def mirage_benchmark(path: Path) -> list[tuple[int, object]] | None:
    """Read the questions of a ``benchmark.json`` as numbered rows; None if the file is something else.

    ``{"medqa": {"0000": {"question": …, "options": {"A": …}, "answer": "B"}}}`` makes the row ``{"id":
    "medqa/0000", "dataset": "medqa", "question": …, "options": …, "answer": "B"}``. Rows count from 1: the
    file is one line, or many that say nothing.

    Raises:
        FileError: the file is not there, empty, or not UTF-8.
    """
    text = whole_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not content:
        return None
    if not all(isinstance(part, dict) for part in content.values()):
        return None
    rows: list[object] = [
        {
            "id": f"{name}/{key}",
            "dataset": name,
            **{column: entry[column] for column in ("question", "options", "answer") if column in entry},
        }
        if isinstance(entry, dict)
        else entry
        for name, part in content.items()
        for key, entry in part.items()
    ]
    return list(enumerate(rows, start=1))
