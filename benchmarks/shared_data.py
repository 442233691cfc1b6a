"""The data sets that are shared beside the checkout."""

from __future__ import annotations

import gzip
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any


def folder(name: str) -> Path:
    """Return the folder of a data set: in ``EVENMESH_SHARED_DATA``, or ``shared/data`` beside the checkout.

    Raises:
        FileNotFoundError: it is not there.
    """
    here = Path(__file__).resolve().parents[1]
    path = Path(os.environ.get("EVENMESH_SHARED_DATA", here.parent / "shared" / "data")) / name
    if not path.is_dir():
        raise FileNotFoundError(f"{name} is not among the shared data sets: set EVENMESH_SHARED_DATA")
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def pieces(text: str, words: int = 100) -> list[str]:
    """Split a text into pieces of about so many words; one piece at least."""
    all_words = text.split()
    count = max(1, round(len(all_words) / words))
    bounds = [len(all_words) * part // count for part in range(count + 1)]
    return [" ".join(all_words[start:end]) for start, end in pairwise(bounds)]
