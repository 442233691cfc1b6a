"""Check what changed: ``python -m tests.check`` lints it, and runs the quick unit tests of its rooms.

What changed is what differs from the last commit that main has, committed or not. Tests marked ``slow`` are left to
``make test``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

ROOMS: Final = {
    "clients/python": ("evenmesh", ("client", "commands")),
    "libs/core": ("evenmesh_core", ("core",)),
    "libs/lab": ("evenmesh_lab", ("lab",)),
    "libs/documents": ("evenmesh_documents", ("documents",)),
    "libs/kit": ("evenmesh_kit", ("kit",)),
    "models": ("evenmesh_models", ("models",)),
    "services/retriever": ("evenmesh_retriever", ("retriever",)),
    "services/reranker": ("evenmesh_reranker", ("reranker",)),
    "services/generator": ("evenmesh_generator", ("generator",)),
    "services/evaluator": ("evenmesh_evaluator", ("evaluator",)),
    "orchestrator": ("evenmesh_orchestrator", ("orchestrator",)),
    "training": ("evenmesh_training", ("training",)),
    "studies": ("evenmesh_studies", ("studies", "commands")),
    "mesh": ("evenmesh_mesh", ("mesh", "commands")),
    "k8s": (None, ("k8s", "operations")),
    "docs": (None, ("docs",)),
    "benchmarks": (None, ("benchmarks",)),
}
"""By folder: the package in it, and the folders of its unit tests."""


def changed() -> list[str]:
    """Return the paths that differ from main, new files among them, without those that are gone."""
    since = next(
        (base for ref in ("origin/main", "main") if (base := _git("merge-base", ref, "HEAD"))), ["HEAD"]
    )
    names = _git("diff", "--name-only", since[0]) + _git("ls-files", "--others", "--exclude-standard")
    return sorted({name for name in names if (ROOT / name).is_file()})


def rooms(paths: Sequence[str]) -> list[str]:
    """Return the rooms that the paths are in; a room's tests belong to it."""
    found = [room for room in ROOMS if any(path.startswith(f"{room}/") for path in paths)]
    tested = [
        room
        for room, (_, tests) in ROOMS.items()
        if any(path.startswith(f"tests/unit/{folder}/") for path in paths for folder in tests[:1])
    ]
    return list(dict.fromkeys([*found, *tested]))


def steps(paths: Sequence[str]) -> list[list[str]]:
    """Return the commands that check these paths."""
    where = rooms(paths)
    python = [path for path in paths if path.endswith(".py") and "_pb2" not in path]
    packages = [package for room in where if (package := ROOMS[room][0])]
    tests = [
        f"tests/unit/{folder}"
        for folder in dict.fromkeys(folder for room in where for folder in ROOMS[room][1])
        if (ROOT / "tests" / "unit" / folder).is_dir()
    ]
    commands = []
    if python:
        commands += [["ruff", "check", *python], ["ruff", "format", "--check", *python]]
    if packages:
        commands += [["mypy", *(word for package in packages for word in ("-p", package))], ["lint-imports"]]
    if any(path.startswith("protos/") for path in paths):
        commands += [["buf", "lint", "protos"], ["buf", "format", "--diff", "--exit-code", "protos"]]
    if tests:
        commands.append(["pytest", "-q", "-n", "3", "--dist", "loadgroup", "-m", "not slow", *tests])
    return commands


def main() -> int:
    """Run every step; the exit status is 1 if one failed."""
    paths = changed()
    if not paths:
        print("nothing differs from main")  # noqa: T201
        return 0
    failed = 0
    for command in steps(paths):
        began = time.monotonic()
        shown = " ".join(command[:6]) + (" …" if len(command) > 6 else "")
        done = subprocess.run(
            [Path(sys.executable).with_name(command[0]), *command[1:]], cwd=ROOT, check=False
        )
        failed |= done.returncode != 0
        result = "failed" if done.returncode else "ok"
        print(f"{result}: {shown} ({time.monotonic() - began:.0f} s)", flush=True)  # noqa: T201
    return failed


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


if __name__ == "__main__":
    sys.exit(main())
