"""Check that committed files which tools of Node made are what their sources say: ``python -m tests.made_files``.

Each list has the SHA-256 of every source and of everything made from them, in the form of ``sha256sum``. So the
check needs no Node: a source that changed, or a made file that was edited, differs from its line. ``make
typescript`` and ``make console`` make the files again and write the lists (``--write``).
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Made:
    """What one command makes.

    Attributes:
        command: makes it again.
        listed: the list, below the root.
        sources: Git's patterns of what it is made from.
        made: Git's patterns of what is made.
    """

    command: str
    listed: str
    sources: tuple[str, ...]
    made: tuple[str, ...]


CLIENT: Final = "clients/typescript"
GATEWAY: Final = "services/gateway/evenmesh_gateway/console"
EVERYTHING: Final = {
    "typescript": Made(
        "make typescript",
        f"{CLIENT}/generated.sha256",
        ("protos/*.proto", f"{CLIENT}/buf.gen.yaml", f"{CLIENT}/package-lock.json"),
        (f"{CLIENT}/src/gen/*",),
    ),
    "console": Made(
        "make console",
        "console/built.sha256",
        ("console/*", ":!console/built.sha256", f"{CLIENT}/src/*.ts"),
        (f"{GATEWAY}/files/*",),
    ),
}


def files(*patterns: str) -> Iterator[str]:
    """Yield the files of patterns that Git knows or would add, in order."""
    if patterns:
        known = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns)
        listed = subprocess.run(known, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        yield from sorted({name for name in listed.splitlines() if (ROOT / name).is_file()})


def lines(made: Made) -> list[str]:
    """Return the lines of a list as the files are now."""
    return [
        f"{hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}  {name}"
        for name in (*files(*made.sources), *files(*made.made))
    ]


def differences(made: Made) -> list[str]:
    """Return the files that are not as their list says."""
    path = ROOT / made.listed
    written = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return sorted({line.split("  ", 1)[1] for line in set(lines(made)) ^ set(written)})


def main(arguments: list[str]) -> int:
    """Check the lists, or write those that are named after ``--write``."""
    if arguments[:1] == ["--write"]:
        for name in arguments[1:]:
            made = EVERYTHING[name]
            (ROOT / made.listed).write_text("\n".join(lines(made)) + "\n", encoding="utf-8")
        return 0
    for made in EVERYTHING.values():
        if differing := differences(made):
            print(f"{', '.join(differing[:5])}: not what was made; {made.command}", file=sys.stderr)  # noqa: T201
            return 1
    print("what Node's tools made is what its sources say")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
