"""Long fuzz runs: ``python -m tests.fuzz rpcs --requests 200000``, ``python -m tests.fuzz parsers --inputs 1000000``."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.fuzz.parsers import Target

_PROGRESS_S: Final = 20.0
_SLOW_S: Final = 20
"""Most processor time of one input: on a busy machine the clock says little."""
_HANGS_S: Final = 600
"""Time after which an input that does not end is one."""
_MEMORY_MB: Final = 4096
_MOST_FINDINGS: Final = 40
_MEASURED: Final = (
    "evenmesh_kit",
    "evenmesh_documents",
    "evenmesh_orchestrator.expressions",
    "evenmesh_core.group_fairness",
    "evenmesh_lab.files",
    "evenmesh",
    "evenmesh_reranker.models.manifest",
)


def main() -> int:
    """0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    rpcs = kinds.add_parser("rpcs", help="odd requests to every method of five real services")
    rpcs.add_argument("--requests", type=int, default=200_000)
    rpcs.add_argument("--seed", type=int, default=1)
    rpcs.add_argument("--only", default="", help="methods whose names hold this")
    rpcs.add_argument("--findings", type=Path, default=Path("build/fuzz/rpcs.jsonl"))
    parsers = kinds.add_parser("parsers", help="odd bytes to every reader, by atheris")
    parsers.add_argument("--inputs", type=int, default=1_000_000)
    parsers.add_argument("--each", type=int, default=0, help="inputs of every reader, in place of --inputs")
    parsers.add_argument("--seed", type=int, default=1)
    parsers.add_argument(
        "--only", default="", help="readers whose names hold this, or one of several, separated by commas"
    )
    parsers.add_argument(
        "--longest", type=int, default=8192, help="bytes of the longest input, if no seed has more than half"
    )
    parsers.add_argument("--findings", type=Path, default=Path("build/fuzz/parsers"))
    given = parser.parse_args()
    return _rpcs(given) if given.kind == "rpcs" else _parsers(given)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _rpcs(given: Any) -> int:
    from tests.fuzz import rpcs
    from tests.fuzz.mesh import FuzzMesh, Held

    logging.getLogger("evenmesh").propagate = False
    warnings.simplefilter("ignore")
    counts = {name: count for name, count in rpcs.plan(given.requests).items() if given.only in name}
    held: list[tuple[int, Held]] = []
    reported = [0]
    spoken = began = time.monotonic()

    async def on_call(tally: rpcs.Tally) -> None:
        nonlocal spoken
        if time.monotonic() - spoken < _PROGRESS_S:
            return
        spoken = time.monotonic()
        held.append((tally.calls, await Held.now()))
        for one in tally.findings[reported[0] :]:
            _say(f"  {one.rpc}: {one.problem} {one.line() if sum(map(len, one.case)) < 20_000 else ''}")
        reported[0] = len(tally.findings)
        _say(f"{spoken - began:.0f} s: {tally.calls:,} calls, {len(tally.findings)} findings, {held[-1][1]}")

    with (
        tempfile.TemporaryDirectory() as folder,
        FuzzMesh(Path(folder)) as mesh,
        rpcs.Incidents() as incidents,
    ):
        mesh.run(
            rpcs.fuzz(mesh, {name: min(count, 20) for name, count in counts.items()}, seed=given.seed + 1)
        )
        before = mesh.run(Held.now())
        tally = mesh.run(rpcs.fuzz(mesh, counts, seed=given.seed, on_call=on_call))
        left = mesh.run(mesh.settled(rpcs.TIMEOUT_S))
        after = mesh.run(Held.now())
        broken = mesh.run(rpcs.still_right(mesh))
    statuses: Counter[str] = sum(tally.statuses.values(), Counter())
    for name, of_method in sorted(tally.statuses.items()):
        _say(
            f"{name:40} {sum(of_method.values()):7,}  {tally.slowest[name]:6.2f} s  {dict(of_method.most_common())}"
        )
    _say(
        f"seed {given.seed}: {tally.calls:,} calls in {time.monotonic() - began:.0f} s: {dict(statuses.most_common())}"
    )
    _say(
        f"before {before}\nafter  {after}\ncalls left running: {left}; methods no longer right: {broken or 'none'}"
    )
    for stack, times in Counter("\n".join(one.splitlines()[-6:]) for one in incidents.stacks).most_common(20):
        _say(f"--- {times} times\n{stack}")
    given.findings.parent.mkdir(parents=True, exist_ok=True)
    given.findings.write_text("".join(f"{one.line()}\n" for one in tally.findings), encoding="utf-8")
    _say(f"{len(tally.findings)} findings, in {given.findings}")
    return 1 if tally.findings or left or broken else 0


def _parsers(given: Any) -> int:
    import atheris

    logging.disable()
    warnings.simplefilter("ignore")
    # What is measured for coverage: our own readers, not the libraries under them.
    with atheris.instrument_imports(include=list(_MEASURED)):
        from tests.fuzz import parsers

    given.findings.mkdir(parents=True, exist_ok=True)
    done, found, began = 0, 0, time.monotonic()
    for name, count in parsers.plan(given.inputs).items():
        if not any(part in name for part in given.only.split(",")):
            continue
        left, seed = given.each or count, given.seed
        while left > 0 and found < _MOST_FINDINGS:
            reported = given.findings / f"{name}.json"
            reported.unlink(missing_ok=True)
            # A process for each reader, as libFuzzer ends the one it runs in; forked, as importing takes long.
            if (child := os.fork()) == 0:
                _fuzz(parsers.TARGETS[name], left, seed, reported, given.longest)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said = json.loads(reported.read_text(encoding="utf-8")) if reported.exists() else {"inputs": 0}
            _say(f"{time.monotonic() - began:5.0f} s {name:20} exit {status} {said}")
            done += said["inputs"]
            left, seed = left - max(1, said["inputs"]), seed + 1
            found += status != 0
    _say(
        f"seed {given.seed}: {done:,} inputs in {time.monotonic() - began:.0f} s, {found} findings, in {given.findings}"
    )
    return 1 if found else 0


def _fuzz(target: Target, count: int, seed: int, reported: Path, longest: int) -> None:
    import atheris
    import psutil

    process = psutil.Process()
    counted = {"inputs": 0, "taken": 0}

    def note() -> None:
        for what, value in (
            ("descriptors", process.num_fds()),
            ("memory_mb", process.memory_info().rss >> 20),
        ):
            counted.setdefault(what, value)
            counted[f"most_{what}"] = max(counted.get(f"most_{what}", 0), value)
        reported.write_text(json.dumps(counted), encoding="utf-8")

    def one_input(data: bytes) -> None:
        counted["inputs"] += 1
        began = time.process_time()
        try:
            counted["taken"] += target.try_on(data)
            if (took := time.process_time() - began) > _SLOW_S:
                raise TimeoutError(f"took {took:.0f} s of processor time")
        except BaseException as error:
            note()
            (reported.parent / f"{target.name}--{type(error).__name__}-{counted['inputs']}").write_bytes(data)
            raise
        if counted["inputs"] in (100, count) or counted["inputs"] % 1000 == 0:
            # Among the many objects of this process Python rarely looks for cycles, as those of Office files are.
            gc.collect()
            note()

    corpus = Path(tempfile.mkdtemp(prefix="fuzz-"))
    for number, data in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(data)
    limits = [
        f"-timeout={_HANGS_S}",
        f"-rss_limit_mb={_MEMORY_MB}",
        f"-max_len={max(longest, 2 * max(map(len, target.seeds)))}",
        "-verbosity=0",
        "-len_control=20",
    ]
    prefix = f"-artifact_prefix={reported.parent}/{target.name}--"
    atheris.Setup(["fuzz", f"-runs={count}", f"-seed={seed}", prefix, *limits, str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
