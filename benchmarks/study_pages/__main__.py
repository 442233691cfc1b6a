"""``python -m benchmarks.study_pages STUDY``: the tables of a study's page, from its stored records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from benchmarks.page import fill
from benchmarks.study_pages import eor, fair_rag, ium, rag
from benchmarks.study_pages.cells import STUDIES
from benchmarks.study_pages.seen import write_seen


class Pages(Protocol):
    """What a study's module does."""

    def refresh(self) -> None:
        """Compute what follows from the records again, and store it."""

    def tables(self) -> dict[str, str]:
        """Return the tables of the page by their names there."""


PAGES: Final[dict[str, Pages]] = {"fair-rag": fair_rag, "eor": eor, "ium": ium, "rag": rag}


def main(arguments: Sequence[str]) -> None:
    """Compute a study's tables again, and write them into its page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study_pages", description=__doc__)
    parser.add_argument("study", choices=sorted(PAGES))
    parser.add_argument("--data", type=Path, help="folder of the data sets; parts seen from unseen questions")
    given = parser.parse_args(arguments)
    PAGES[given.study].refresh()
    if given.data is not None:
        write_seen(given.study, given.data)
    fill(STUDIES / f"{given.study}.md", PAGES[given.study].tables())


if __name__ == "__main__":
    main(sys.argv[1:])
