"""A process that removes old model versions is killed: what is left is whole, and the next one ends the work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from evenmesh_reranker.domain import AllAgents
from evenmesh_reranker.models import retention
from evenmesh_reranker.models.file_promotions import FilePromotions
from evenmesh_reranker.models.manifest import Lineage
from evenmesh_reranker.models.store import ModelStore

_KILLED = """
import asyncio, os, shutil, signal, sys
from datetime import timedelta
from pathlib import Path
from evenmesh_kit.storage import durable_files
from evenmesh_reranker.models import retention, store
from evenmesh_reranker.models.file_promotions import FilePromotions

def die(*args, **kwargs):
    if {half}:
        next(Path(args[0]).iterdir()).unlink()
    os.kill(os.getpid(), signal.SIGKILL)

{what} = die
corpus = store.ModelStore(Path(sys.argv[1]))
for _ in range(2):
    asyncio.run(retention.prune(corpus, FilePromotions(corpus), keep=1, grace=timedelta(0)))
"""


def prune(store: ModelStore, *, grace: timedelta = retention.LOADING) -> None:
    asyncio.run(retention.prune(store, FilePromotions(store), keep=1, grace=grace))


@pytest.mark.parametrize(
    ("what", "half", "gone"),
    [
        ("durable_files.write", False, False),  # before it was noted that nothing needs a version
        ("Path.rename", False, False),  # before it was taken out
        ("durable_files.sync_folder", False, True),  # taken out, and perhaps not durably so
        ("shutil.rmtree", True, True),  # while its files go
    ],
)
def test_killed_while_it_removes(tmp_path: Path, what: str, half: bool, gone: bool) -> None:
    store = ModelStore(tmp_path)
    versions = []
    for at in range(4):
        with store.write(Lineage(f"round {at}")) as draft:
            (draft.folder / "weights").write_bytes(bytes(1000))
            (draft.folder / "config.json").write_text("{}")
        versions.append(draft.version)
        store.set_pointer(AllAgents(), store.pointer(AllAgents()).promoted(draft.version))
    if what in ("Path.rename", "durable_files.sync_folder"):
        prune(store)  # notes it first: that writes in the same way
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED.format(what=what, half=half), str(tmp_path)], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert (set(store.manifests({})) == set(versions[1:])) is gone
    for version in store.manifests({}):
        store.verified(version)
    for _ in range(2):
        prune(store, grace=timedelta(0))
    assert set(store.manifests({})) == set(versions[1:])
    day_ago = time.time() - 25 * 3600
    for left in (tmp_path / "incoming").iterdir():
        os.utime(left, (day_ago, day_ago))
    store.tidy()
    assert not list((tmp_path / "incoming").iterdir())
