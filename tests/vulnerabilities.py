"""Ask for known vulnerabilities of everything that is pinned: locks/ and constraints.txt.

    python -m tests.vulnerabilities

Fails for an advisory that locks/advisories.toml does not leave out with a reason, for an entry there that is over or
not needed any more, and where the index has no advisories (with --where-possible it says so and goes on).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]
_IGNORED: Final = _ROOT / "locks" / "advisories.toml"


def pinned() -> list[str]:
    """Return what is pinned anywhere, ``name==version``."""
    files = [_ROOT / "constraints.txt", *sorted((_ROOT / "locks").glob("*.txt"))]
    pins = re.findall(r"^([\w.-]+==[\w.!-]+)", "\n".join(file.read_text() for file in files), re.MULTILINE)
    return sorted(
        {
            re.sub(r"[-_.]+", "-", name).lower() + at + version
            for name, at, version in (one.partition("==") for one in pins)
        }
    )


def problems(report: Mapping[str, Any], ignored: Mapping[str, Any], today: date) -> list[str]:
    """Return what is wrong, one line each.

    Args:
        report: of pip-audit, as JSON.
        ignored: content of locks/advisories.toml.
        today: entries that end before are over.
    """
    entries = {one["id"]: one for one in ignored.get("ignored", ())}
    found = [
        f"advisories.toml: {id_}: say why, in reason" for id_, one in entries.items() if not one.get("reason")
    ]
    found += [
        f"advisories.toml: {id_}: was left out until {one['until']}: look again"
        for id_, one in entries.items()
        if one["until"] < today
    ]
    used = set()
    for package in report["dependencies"]:
        for advisory in package.get("vulns", ()):
            names = {advisory["id"], *advisory.get("aliases", ())}
            if known := names & set(entries):
                used |= known
                continue
            fixed = ", ".join(advisory.get("fix_versions", ())) or "none yet"
            found.append(f"{package['name']} {package['version']}: {advisory['id']}; fixed in: {fixed}")
    return found + [
        f"advisories.toml: {id_}: concerns nothing any more: remove it" for id_ in entries.keys() - used
    ]


def audited(report: Mapping[str, Any]) -> int:
    """Return of how many packages the index has advisories, or none."""
    return sum("skip_reason" not in one for one in report["dependencies"])


def main() -> int:
    """Audit, and return 0 if there is nothing to do."""
    parser = argparse.ArgumentParser(prog="python -m tests.vulnerabilities", description=__doc__)
    parser.add_argument(
        "--where-possible", action="store_true", help="go on where the index has no advisories"
    )
    given = parser.parse_args()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pinned()))
        file.flush()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off"),
                *("--format=json", "--requirement", file.name),
            ],
            capture_output=True,
            text=True,
        )
    report = json.loads(done.stdout) if done.stdout.startswith("{") else {"dependencies": []}
    if not audited(report):
        sys.stderr.write("the package index has no advisories here: nothing was audited\n")
        return 0 if given.where_possible else 1
    wrong = problems(report, tomllib.loads(_IGNORED.read_text()), datetime.now(UTC).date())
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(
        f"audited {audited(report)} of {len(report['dependencies'])} packages: {len(wrong)} problems\n"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
