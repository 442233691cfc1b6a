"""One tenant attacks for ten minutes while another asks: ``python -m tests.attack --seconds 600``."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.attack.attacker import ROWS
from tests.attack.standing import PAUSE_S, Seen, endure, mesh_with_tenants, p95

_LEAST_SUCCESS = 0.99
_MOST_RATIO = 2.0


def main() -> int:
    """Return 0 if the other tenant was served as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="time under attack")
    parser.add_argument("--turns", type=int, default=6, help="turns of quiet and attack")
    parser.add_argument(
        "--rows", type=int, nargs="+", choices=ROWS, default=ROWS, help="attacks to make; default: all"
    )
    parser.add_argument(
        "--pause", type=float, default=PAUSE_S, help="seconds between an answer and the next ask"
    )
    parser.add_argument(
        "--repeated", action="store_true", help="ask the same questions again, whose passages are encoded"
    )
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="evenmesh-attack-") as home,
        mesh_with_tenants(Path(home)) as mesh,
    ):
        seen = asyncio.run(
            endure(
                mesh,
                given.seconds,
                given.turns,
                rows=given.rows,
                pause_s=given.pause,
                repeated=given.repeated,
            )
        )
    sys.stdout.write(report(seen) + "\n")
    wrong = [*seen.internal, *seen.guessed, *seen.lost, *seen.restarts, *seen.left]
    good = seen.success >= _LEAST_SUCCESS and seen.p95_ratio <= _MOST_RATIO and not wrong and not seen.dropped
    return 0 if good else 1


def report(seen: Seen) -> str:
    """Return what was measured, in Markdown."""
    rows = [
        (f"asks answered in {seen.attack_s:g} s of attack", f"{100 * seen.success:.1f} %", "≥ 99 %"),
        ("asks in quiet, under attack", f"{len(seen.quiet_s)}, {len(seen.attacked_s)}", ""),
        ("p95 in quiet, under attack", f"{p95(seen.quiet_s):.2f} s, {p95(seen.attacked_s):.2f} s", ""),
        *(
            (f"p95 of {stage}", f"{p95(quiet):.2f} s, {p95(attacked):.2f} s", "")
            for stage, (quiet, attacked) in seen.stages_s.items()
        ),
        ("ratio", f"{seen.p95_ratio:.2f}", "≤ 2"),
        ("uploads in attack", f"{seen.uploaded}", ""),
        (
            "other uploads",
            ", ".join(f"{n} × {one}" for one, n in (+seen.failed_uploads).items()) or "none",
            "",
        ),
        ("left of uploads", ", ".join(seen.left) or "nothing", "nothing"),
        ("lost observations", f"{len(seen.lost)}, {seen.dropped} reported", "0"),
        ("last observation there after", f"{seen.observed_after_s:.1f} s", ""),
        ("restarts", ", ".join(seen.restarts) or "none", "none"),
        ("secrets guessed", f"{len(seen.guessed)}", "0"),
        ("failures", ", ".join(f"{n} × {one}" for one, n in seen.failed.items()) or "none", ""),
        ("memory, MiB", ", ".join(f"{name} {mib:.0f}" for name, mib in seen.peak_mib.items()), ""),
        *(
            (f"processor time of {name}", f"{quiet:.0f} s, {attacked:.0f} s", "")
            for name, (quiet, attacked) in seen.cpu_s.items()
        ),
    ]
    lines = [
        "| | | target |",
        "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        "The attacker's calls:",
        "",
    ]
    return "\n".join([*lines, *(f"- {n} × {one}" for one, n in sorted(seen.outcomes.items()))])


if __name__ == "__main__":
    sys.exit(main())
