"""Twelve towns with a passage and a question each."""

from collections.abc import Callable, Sequence
from typing import Any

Write = Callable[[str, Sequence[dict[str, Any]]], None]
"""Writes rows to a gzipped JSON-lines file of the data folder."""

TOWNS = (
    "Aarau",
    "Basel",
    "Chur",
    "Davos",
    "Erlen",
    "Flims",
    "Genf",
    "Horgen",
    "Ilanz",
    "Jona",
    "Kloten",
    "Lugano",
)


def passage(town: str, *, prefix: str = "p") -> dict[str, Any]:
    return {
        "id": f"{prefix}-{town}",
        "title": town,
        "text": f"{town} lies in a valley. Its mayor is called {town}son Keller. The market opens on Monday.",
        "provider": town,
    }


def question(town: str, *, prefix: str = "p") -> dict[str, Any]:
    return {
        "id": f"q-{prefix}-{town}",
        "question": f"Who is the mayor of {town}?",
        "answers": [f"{town}son Keller"],
        "gold_passage_ids": [f"{prefix}-{town}"],
        "title": town,
    }
