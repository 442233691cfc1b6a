"""Find and kill the processes of Triton's Python models: the server starts and never checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import psutil

_NAME: Final = "triton_python_backend_stub"[:15]
"""As Linux shows it."""


def of_server(server: int) -> set[int]:
    """Return the ids of the live processes of a server's models.

    Args:
        server: the server's process id.
    """
    try:
        children = psutil.Process(server).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {child.pid for child in children if _is_stub(child)}


def of_regions(wanted: Callable[[str], bool]) -> set[int]:
    """Return the ids of processes of models, of any server, by the name of their region of shared memory."""
    found: set[int] = set()
    for process in psutil.process_iter():
        try:
            if _is_stub(process) and any(wanted(part.lstrip("/")) for part in process.cmdline()):
                found.add(process.pid)
        except psutil.Error:
            continue  # ended meanwhile, or somebody else's
    return found


def kill(pids: Iterable[int]) -> None:
    """Kill those of the processes that still are model processes."""
    for pid in pids:
        try:
            process = psutil.Process(pid)
            if _is_stub(process):
                process.kill()
        except psutil.Error:
            continue


def _is_stub(process: psutil.Process) -> bool:
    try:
        return process.name().startswith(_NAME) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
