"""Kills processes that write a collection, at each durable step in turn; prints what a restart finds.

Only processes die here, not the machine, so nothing waits for the disk: fsync is counted and not done.

Run as ``crashing.py FOLDER ACTION``; prints a JSON list, an entry per step and a last one that ran through.
"""
# ruff: noqa: ASYNC240 - one task a process, nothing waits beside it

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from services.retriever.analyzer import UnicodeWordAnalyzer
from services.retriever.backends.local.build import Recipe
from services.retriever.backends.local.store import LocalStore
from services.retriever.domain import Passage

STEPS = ("fsync", "rename", "replace")
OLD = [Passage("a", "", "old text"), Passage("b", "", "other text")]
NEW = [Passage("b", "", "new text"), Passage("c", "", "more text")]


def in_child(work: Callable[[], object]) -> int:
    """Runs something in a forked process, so that threads and SIGKILL stay there; returns its wait status."""
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]


def with_store(root: Path, use: Callable[[LocalStore], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        store = LocalStore(root, Recipe(UnicodeWordAnalyzer(), None), lambda _: None)
        await store.start()
        await use(store)
        await store.stop()

    asyncio.run(main())


def state_of(root: Path, out: Path) -> None:
    async def look(store: LocalStore) -> None:
        found = {}
        for info in store.list():
            with store.lease(info.name) as snapshot:
                found[info.name] = [passage.text for passage in snapshot.passages(range(len(snapshot)))]
        # Whatever was left is gone once the store has started.
        names = [path.name for path in root.glob(".*") if path.name != ".lock"]
        names += [path.name for path in root.glob("*/.*")]
        report = await store.ingest("c", [Passage("z", "", "again")], create=True)
        out.write_text(json.dumps({"state": found, "leftovers": names, "again": report.added}))

    in_child(lambda: with_store(root, look))


def act(root: Path, action: str, die_at: int, acknowledgement: Path) -> None:
    calls = 0

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            nonlocal calls
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return real(*args)

        return call

    async def change(store: LocalStore) -> None:
        for step in STEPS:
            setattr(os, step, counted(getattr(os, step)))
        if action == "drop":
            await store.drop("c")
        else:
            await store.ingest("c", NEW, create=True)
        acknowledgement.touch()

    with_store(root, change)


def main(folder: Path, action: str) -> None:
    os.fsync = lambda _: None
    start, scratch = folder / "start", folder / "scratch"

    async def prepare(store: LocalStore) -> None:
        if action != "create":
            await store.ingest("c", OLD, create=True)

    in_child(lambda: with_store(start, prepare))
    out, acknowledgement = folder / "state.json", folder / "acknowledged"
    outcomes: list[dict[str, object]] = []
    while not outcomes or outcomes[-1]["killed"]:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(start, scratch)
        acknowledgement.unlink(missing_ok=True)
        step = len(outcomes)
        status = in_child(lambda: act(scratch, action, step, acknowledgement))  # noqa: B023 - runs at once
        state_of(scratch, out)
        outcomes.append(
            {
                "killed": os.WIFSIGNALED(status),
                "acknowledged": acknowledgement.exists(),
                "before": {} if action == "create" else {"c": ["old text", "other text"]},
                "after": {
                    "ingest": {"c": ["old text", "new text", "more text"]},
                    "create": {"c": ["new text", "more text"]},
                    "drop": {},
                }[action],
                **json.loads(out.read_text()),
            }
        )
    sys.stdout.write(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
