"""A process is killed at every fault point; what was acknowledged last is there when another one opens it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from evenmesh_kit.security.caller import DEFAULT_TENANT
from evenmesh_retriever.backends.segments.files.faults import POINTS, VARIABLE
from evenmesh_retriever.backends.segments.snapshot import SegmentSnapshot
from evenmesh_retriever.backends.segments.store import SegmentStore
from evenmesh_retriever.domain import Passage
from tests.unit.retriever.backends.segments.living import recipe

LIVING = Path(__file__).with_name("living.py")


@dataclass(frozen=True)
class Ended:
    """How a process that lived ended: its status, below zero for a signal, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported what lives need, of which each life is a fork: imports take a second."""
    with subprocess.Popen(
        [sys.executable, str(LIVING)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def lived(parent: subprocess.Popen[str], root: Path, point: str) -> Ended:
    assert parent.stdin is not None
    assert parent.stdout is not None
    output = root.with_name(f"{root.name}-output")
    errors = root.with_name(f"{root.name}-errors")
    asked = {
        "root": str(root),
        "environment": {VARIABLE: point},
        "output": str(output),
        "errors": str(errors),
    }
    parent.stdin.write(json.dumps(asked) + "\n")
    parent.stdin.flush()
    status = os.waitstatus_to_exitcode(int(parent.stdout.readline()))
    return Ended(status, output.read_text(), errors.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("point", POINTS)
async def test_killed_at_a_point_the_last_acknowledged_state_is_there(
    parent: subprocess.Popen[str], tmp_path: Path, point: str, times: int
) -> None:
    reported = lived(parent, tmp_path, f"{point}@{times}")
    # All points but the rarest are passed that often.
    assert reported.returncode == -signal.SIGKILL or times == 5, reported.stderr
    states = [json.loads(line) for line in reported.stdout.splitlines()]
    acknowledged = [state["held"] for state in states if "held" in state]
    allowed = [acknowledged[-1] if acknowledged else {}]
    if "next" in states[-1]:
        # The write that was under way may have been made whole, without having been acknowledged.
        allowed.append(states[-1]["next"])

    store = SegmentStore(tmp_path, recipe(), lambda _: None)
    await store.start()
    collections = store.of(DEFAULT_TENANT)
    try:
        if not collections.list():
            assert not acknowledged
            return
        with collections.lease("c") as snapshot:
            assert isinstance(snapshot, SegmentSnapshot)
            held = {p.id: p.text for p in snapshot.passages(snapshot.rows().tolist())}
            assert snapshot.info.warning == ""
        assert held in allowed
        # It lives on: what was left is gone, what was to be embedded is, and it can be written.
        await collections.ingest("c", [Passage("new", "", "new text")], create=False)
        await store.settled()
        info = collections.describe("c")
        assert (info.num_passages, info.embedded) == (len(held) + 1, 1)
        folder = tmp_path / DEFAULT_TENANT / "c"
        assert not list(folder.rglob(".*"))
        assert len(list(folder.glob("versions/*.json"))) <= 2
    finally:
        await store.stop()


def test_without_the_variable_nothing_happens(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    reported = lived(parent, tmp_path, "")
    assert reported.returncode == 0, reported.stderr
    assert json.loads(reported.stdout.splitlines()[-1])["held"]
