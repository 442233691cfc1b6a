"""pytest-xdist keeps the tests of a group in one process, so that a server they share is started once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
