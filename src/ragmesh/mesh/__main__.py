"""The supervisor as a process: ``python -m ragmesh.mesh SETTINGS``, started by :func:`ragmesh.mesh.launch`.

Tells its parent, one JSON object a line on standard output, what happens until the mesh is ready or cannot
start; after that it is on its own.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from ragmesh.mesh.detached import load
from ragmesh.mesh.progress import Progress
from ragmesh.mesh.settings import MeshSettings
from ragmesh.mesh.signals import StopSignals
from ragmesh.mesh.supervisor import Mesh, MeshStartError


class Parent:
    """Whoever started this process, as far as it still listens."""

    def __init__(self) -> None:
        self._listens = True

    def tell(self, message: dict[str, Any]) -> None:
        """Sends one line; a parent that is gone does not hear it."""
        if not self._listens:
            return
        try:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.leave()

    def leave(self) -> None:
        """Stops talking, so that the parent's pipe closes."""
        self._listens = False
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


async def supervise(settings: MeshSettings) -> int:
    """Runs the mesh until a signal; the exit status."""
    parent = Parent()

    def observe(progress: Progress) -> None:
        parent.tell(asdict(progress))

    mesh = Mesh(settings, observe)
    with StopSignals(mesh.kill):
        try:
            async with mesh:
                parent.tell({"ready": True})
                parent.leave()
                await mesh.watch()
        except MeshStartError as exc:
            parent.tell({"error": str(exc)})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(supervise(load(sys.argv[1]))))
