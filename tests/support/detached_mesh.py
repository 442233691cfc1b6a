"""A mesh in the background that does not outlive the tests, also if they are killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from evenmesh.local_mesh import MeshState
from evenmesh_mesh import MeshSettings, launch
from evenmesh_mesh.progress import Observe, unobserved

_WATCH: Final = """
import sys
from pathlib import Path
sys.stdin.read()
from evenmesh_mesh import stop
stop(Path(sys.argv[1]))
"""
_watching: Final[dict[Path, subprocess.Popen[bytes]]] = {}
"""The process for each home; its standard input ends with this process."""


def launch_for_tests(settings: MeshSettings, observe: Observe = unobserved) -> MeshState:
    """Start a mesh as ``launch`` does; a further process stops it once this one has ended."""
    if settings.home not in _watching:
        _watching[settings.home] = subprocess.Popen(
            [sys.executable, "-c", _WATCH, str(settings.home)], stdin=subprocess.PIPE, start_new_session=True
        )
    return launch(settings, observe)
