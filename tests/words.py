"""Refuse names and words of the past: ``python -m tests.words``, a part of ``make lint``.

The old names of the project stand in the changelog alone. Words of the old private vocabulary have a word of the
field in their place (CONTRIBUTING.md); the list has those that say nothing to a newcomer.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

NAMES: Final = re.compile(
    "|".join(("rag" + "mesh", "rag" + "core", "rag" + "lab", "mesh" + "kit")), re.IGNORECASE
)
"""Names that the project and its packages once had; allowed in the changelog alone."""

WORDS: Final = re.compile(
    r"(?<![a-z])(?:told|couriers?|chorus|shelf|shelves|governors?|caretakers?|postman|postmen|inquiry|of late|witness(?:es)?|ballots?|cohorts?)(?![a-z])",
    re.IGNORECASE,
)
"""Words that are no longer used in code (names too), comments and documentation."""

_CHANGELOG: Final = "CHANGELOG.md"
_STYLE: Final = "CONTRIBUTING.md"
"""Quotes old sentences beside better ones."""
_BINARY: Final = {".bloom", ".gz", ".parquet", ".png", ".safetensors"}
_DATA: Final = {".csv", ".json", ".jsonl", ".svg", ".trec", ".txt"}
"""Endings of files that quote what others wrote."""


def found() -> Iterator[str]:
    """Yield a line for each place where a name or word of the past stands."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if NAMES.search(name):
            yield f"{name}: the path has an old name"
        if name == _CHANGELOG or path.suffix in _BINARY or path.is_symlink() or not path.is_file():
            continue
        quoting = path.suffix in _DATA or name == _STYLE or path == Path(__file__)
        words = None if quoting else WORDS
        for number, line in enumerate(
            path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        ):
            for pattern, what in ((NAMES, "an old name"), (words, "an old word")):
                if pattern is not None and (match := pattern.search(line)):
                    yield f"{name}:{number}: {match[0]!r} is {what}"


def main() -> int:
    """Print what was found; the exit status is 1 if there is anything."""
    places = list(found())
    for place in places:
        print(place)  # noqa: T201
    return int(bool(places))


if __name__ == "__main__":
    sys.exit(main())
