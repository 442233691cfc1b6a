"""What the five services hold in memory after a start and one ask, and what their start costs.

``python -m benchmarks.idle FOLDER`` starts those of another checkout in turn with those of this one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks import page
from evenmesh.local_mesh import read_running
from evenmesh_kit.process.serving import GIVE_BACK_S

HEADING: Final = "Idle memory, and what a start costs"
ROUNDS: Final = 3
SERVICES: Final = ("generator", "retriever", "reranker", "evaluator", "orchestrator")
_QUESTION: Final = "What is replaced together with a worn chain?"
_ROOMS: Final = (
    *("clients/python", "libs/core", "libs/lab", "libs/documents", "libs/kit", "models", "orchestrator"),
    *(f"services/{name}" for name in ("retriever", "reranker", "generator", "evaluator", "gateway")),
    *("training", "studies", "mesh"),
)
_PRESENT: Final = np.uint64(1 << 63)
_FRAME: Final = np.uint64((1 << 55) - 1)


@dataclass(frozen=True)
class Start:
    """One start of the five services.

    Attributes:
        cpu_s: processor time of each until all serve, children included. Seconds.
        started: memory of each when all serve. Bytes.
        asked: the same after one ask.
        idle: the same when memory was given back again.
    """

    cpu_s: Mapping[str, float]
    started: Mapping[str, float]
    asked: Mapping[str, float]
    idle: Mapping[str, float]


def proportional(processes: Mapping[str, int]) -> dict[str, float]:
    """Return the proportional set size of each of some processes. Bytes.

    A page counts for each of the processes that hold it in equal parts, as in the system's own PSS; that
    programs beside them hold it too, such as the libraries of another virtual environment, does not count.
    Where page frames are not shown, which root alone is, it is the system's PSS.
    """
    frames = {name: _frames(pid) for name, pid in processes.items()}
    every = np.concatenate(list(frames.values()))
    if not every.any():
        return {name: float(psutil.Process(pid).memory_full_info().pss) for name, pid in processes.items()}
    known, holders = np.unique(every, return_counts=True)
    return {
        name: float((os.sysconf("SC_PAGE_SIZE") / holders[np.searchsorted(known, held)]).sum())
        for name, held in frames.items()
    }


def _frames(pid: int) -> NDArray[np.uint64]:
    """Return the page frames that a process holds, each once."""
    size = os.sysconf("SC_PAGE_SIZE")
    found = []
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pages:
        for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
            begin, _, end = line.split()[0].partition("-")
            first, last = int(begin, 16) // size, int(end, 16) // size
            if line.endswith("[vsyscall]"):
                continue
            pages.seek(8 * first)
            entries = np.frombuffer(pages.read(8 * (last - first)), np.uint64)
            found.append(entries[entries & _PRESENT != 0] & _FRAME)
    return np.unique(np.concatenate(found))


def start(folder: Path, environment: Mapping[str, str]) -> Start:
    """Start the services in a folder that was used before, ask, and end them."""
    command = [sys.executable, "-m", "evenmesh"]
    given = {**os.environ, **environment, "EVENMESH_HOME": str(folder)}
    options = {"env": given, "check": True, "capture_output": True, "cwd": str(folder)}
    subprocess.run([*command, "up", "--detach", "--port", "0", "--no-gateway"], **options)  # type: ignore[call-overload]
    try:
        state = read_running(folder)
        if state is None:
            raise RuntimeError("the mesh has ended")
        processes = {name: state.services[name].pid or 0 for name in SERVICES}
        cpu_s = {name: _cpu_s(pid) for name, pid in processes.items()}
        started = proportional(processes)
        subprocess.run([*command, "ask", _QUESTION], **options)  # type: ignore[call-overload]
        asked = proportional(processes)
        time.sleep(GIVE_BACK_S + 5)
        return Start(cpu_s, started, asked, proportional(processes))
    finally:
        subprocess.run([*command, "down"], **options)  # type: ignore[call-overload]


def _cpu_s(pid: int) -> float:
    spent = psutil.Process(pid).cpu_times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def measure() -> list[Start]:
    """Start and ask again and again, after a first start that compiles and converts what later ones find."""
    with tempfile.TemporaryDirectory() as made:
        start(Path(made), {})
        return [start(Path(made), {}) for _ in range(ROUNDS)]


def section(starts: Sequence[Start]) -> str:
    """Return the section of the page."""

    def cells(name: str) -> dict[str, str]:
        def of(held: str) -> str:
            return f"{_middle(starts, held, name) / 2**20:.0f}"

        cpu_s = median(one.cpu_s[name] for one in starts)
        return {
            "": name,
            "when it serves": of("started"),
            "after an ask": of("asked"),
            "idle again": of("idle"),
            "processor time of its start": f"{cpu_s:.1f} s",
        }

    rows = [cells(name) for name in SERVICES]
    totals = {held: median(_total(one, held) for one in starts) for held in ("started", "asked", "idle")}
    rows.append(
        {
            "": "together",
            **{
                name: f"{bytes_ / 2**20:.0f}"
                for name, bytes_ in zip(list(rows[0])[1:4], totals.values(), strict=True)
            },
            "processor time of its start": f"{median(sum(one.cpu_s.values()) for one in starts):.1f} s",
        }
    )
    return f"""`evenmesh up` and one ask of the bundled models, after a first start that converted them; medians of {len(starts)} starts. Memory is
the proportional set size, in MiB: a page that several of the five hold counts for each in part. "Idle again" is {GIVE_BACK_S + 5:.0f} s after
the ask: a service that answers nothing gives back every {GIVE_BACK_S:.0f} s what it freed and what it can read again from files.

{page.table(rows)}

Together {totals["asked"] / 1e9:.2f} GB after the ask and {totals["idle"] / 1e9:.2f} GB idle again (target ≤ 1.2 GB)."""


def _middle(starts: Sequence[Start], held: str, name: str) -> float:
    return float(median(getattr(one, held)[name] for one in starts))


def _total(start: Start, held: str) -> float:
    return float(sum(getattr(start, held).values()))


def main() -> None:
    """Start another checkout and this one in turn."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle", description=__doc__)
    parser.add_argument("folder", type=Path, help="the other checkout")
    other = parser.parse_args().folder.resolve()
    ways = {"other": {"PYTHONPATH": os.pathsep.join(str(other / room) for room in _ROOMS)}, "this": {}}
    found: dict[str, list[Start]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as made:
        for name, environment in ways.items():
            folder = Path(made) / name
            folder.mkdir()
            start(folder, environment)
        for _ in range(ROUNDS):
            for name, environment in ways.items():
                found[name].append(start(Path(made) / name, environment))
                print(name, found[name][-1], flush=True)
    for name, starts in found.items():
        print(f"\n{name}\n\n{section(starts)}")


if __name__ == "__main__":
    main()
