"""Generate ``evenmesh/_sync`` from ``evenmesh/_async`` (``make sdk``); ``--check`` only compares."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import unasync

HEADER = "# Generated from _async by generate_sync.py (make sdk). Do not edit.\n"
BY_HAND = {"adapter.py", "ingesting.py"}
PACKAGE = Path(__file__).parent / "evenmesh"
# Documentation names both clients; each side's own is the one that it defines.
TEXTS = {
    "with an event loop. ``_sync`` is generated from it: ``make sdk``.": "without an event loop.",
    ":meth:`evenmesh.AsyncClient.": ":meth:`evenmesh.Client.",
}


def main(check: bool) -> int:
    """Write the generated modules, or compare them; return the exit status."""
    source, target = PACKAGE / "_async", PACKAGE / "_sync"
    modules = sorted(path for path in source.glob("*.py") if path.name not in BY_HAND)
    names = {name for path in modules for name in re.findall(r"\bAsync[A-Z]\w+", path.read_text("utf-8"))}
    replacements = {"_async": "_sync", **{name: name.removeprefix("Async") for name in names}}
    with tempfile.TemporaryDirectory(dir=PACKAGE) as folder:
        made = Path(folder)
        rule = unasync.Rule(str(source), str(made), additional_replacements=replacements)
        unasync.unasync_files([str(path) for path in modules], [rule])
        for path in made.glob("*.py"):
            text = path.read_text("utf-8")
            for old, new in TEXTS.items():
                text = text.replace(old, new)
            path.write_text(HEADER + text, "utf-8")
        # What async code needs longer: comprehensions over async iterators, loops that yield.
        for arguments in (["check", "--fix-only", "--unsafe-fixes", "--select=I,C416,UP028"], ["format"]):
            ruff = [sys.executable, "-m", "ruff", *arguments, "-q", made]
            subprocess.run(ruff, check=True)  # noqa: S603 - our own tool
        wanted = {path.name: path.read_text("utf-8") for path in made.glob("*.py")}
    there = {path.name: path.read_text("utf-8") for path in target.glob("*.py") if path.name not in BY_HAND}
    if not check:
        for name in there.keys() - wanted.keys():
            (target / name).unlink()
        for name, text in wanted.items():
            (target / name).write_text(text, "utf-8")
        return 0
    stale = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
    if stale:
        print(f"evenmesh/_sync: {', '.join(stale)} out of date: make sdk", file=sys.stderr)
    return len(stale) > 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
