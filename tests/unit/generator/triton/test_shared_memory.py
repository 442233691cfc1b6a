import os
import subprocess
import sys
from pathlib import Path

from evenmesh_generator.triton import shared_memory


def test_only_what_the_dead_left_is_swept(tmp_path: Path) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    left, ours, others = (
        tmp_path / name
        for name in (f"evenmesh-triton-{done.pid}-x", f"evenmesh-triton-{os.getpid()}-x", "somebody-else-1-x")
    )
    for path in (left, ours, others):
        path.touch()

    assert shared_memory.sweep(tmp_path) == [left.name]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([ours.name, others.name])
    assert shared_memory.prefix() + "x" == ours.name
    assert shared_memory.sweep_own(tmp_path) == [ours.name]
    assert list(tmp_path.iterdir()) == [others]
