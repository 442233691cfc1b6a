"""pytest-xdist keeps the tests of a group in one process, so that a server they share is started once."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.support.order import COMPUTING, WAITING, places

ROOT: Final = Path(__file__).parents[1]

TESTS = """
import os
import pytest

@pytest.mark.parametrize("number", range(20))
@pytest.mark.xdist_group("{group}")
def test_it(number):
    with open("{group}.txt", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_a_group_of_tests_stays_in_one_process(tmp_path: Path) -> None:
    for group in ("one", "two"):
        (tmp_path / f"test_{group}.py").write_text(TESTS.format(group=group))
    words = ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout
    processes = {name: (tmp_path / f"{name}.txt").read_text().split() for name in ("one", "two")}
    assert {name: len(ran) for name, ran in processes.items()} == {"one": 20, "two": 20}
    assert {name: len(set(ran)) for name, ran in processes.items()} == {"one": 1, "two": 1}


AGAIN = """
import os
import pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(3))
def test_it(number):
    with open(f"{number}.txt", "a") as file:
        file.write("ran ")
    assert number != 1 or Path("1.txt").read_text() == "ran ran "

def test_no_socket_counts(request):
    assert not hasattr(request.config.failures_db, "sock")
"""


def test_a_test_that_failed_runs_again_and_no_process_asks_another(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_configure\n")
    (tmp_path / "test_again.py").write_text(AGAIN)
    words = ["-n", "2", "--reruns", "1", "--max-worker-restart", "0", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT.parent)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed, 1 rerun" in done.stdout
    assert [len((tmp_path / f"{number}.txt").read_text().split()) for number in range(3)] == [1, 2, 1]


def test_files_that_wait_compute_long_and_are_short_come_mixed_and_long_ones_not_at_the_end() -> None:
    waiting = {f"integration/{at}": "integration" for at in range(8)} | {"faults/long": "faults"}
    long = {f"contract/{at}": "contract" for at in range(4)} | {"unit/long": "unit"}
    short = {f"unit/{at}": "unit" for at in range(40)}
    groups = {**short, "unit/asks": "mesh", **long, **waiting, "contract/engines": "triton"}
    order = places(groups, {"unit/long"})
    handed_out = sorted(groups, key=order.__getitem__)
    assert set(handed_out[:2]) == {"unit/asks", "contract/engines"}
    assert handed_out.index("faults/long") < 5
    for kind, gap in ((waiting, 6), (long, 11)):
        found = [at for at, file in enumerate(handed_out) if file in kind]
        assert len(found) == len(kind)
        assert found[0] < 5
        assert max(after - before for before, after in pairwise(found)) <= gap
        assert found[-1] < len(handed_out) - 8


def test_every_folder_of_tests_has_its_place() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in ROOT.rglob("test_*.py")}
    assert {one for one in folders if not one.startswith("test_")} == {*WAITING, *COMPUTING}
