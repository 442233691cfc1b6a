"""Run the supervisor as a process: ``python -m evenmesh_mesh SETTINGS``; :func:`evenmesh_mesh.launch` does.

Until the mesh is ready or cannot start, the process writes its progress to standard output for its parent,
one JSON object per line. Then it closes standard output.
"""

import asyncio
import json
import os
import sys
from dataclasses import asdict
from typing import Any

from evenmesh_mesh.detached import load
from evenmesh_mesh.progress import Progress
from evenmesh_mesh.settings import MeshSettings
from evenmesh_mesh.signals import StopSignals
from evenmesh_mesh.supervisor import Mesh, MeshStartError


class Parent:
    """Writes progress to the process that started this one, while that process reads it."""

    def __init__(self) -> None:
        self._listens = True

    def tell(self, message: dict[str, Any]) -> None:
        """Send one line; ignore a parent that is gone."""
        if not self._listens:
            return
        try:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.leave()

    def leave(self) -> None:
        """Close standard output, so that the parent's pipe ends."""
        self._listens = False
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


async def supervise(settings: MeshSettings) -> int:
    """Run the mesh until a signal comes; return the exit status."""
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
    os.umask(0o077)  # logs of services and what they store are this user's alone
    sys.exit(asyncio.run(supervise(load(sys.argv[1]))))
