"""Programs of the pages pass ``mypy --strict`` as they stand, for who copies them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [
    "README.md",
    "docs/guides/conversations.md",
    "docs/guides/fairness-targets.md",
    "docs/guides/feedback.md",
    "docs/guides/sdk.md",
    "docs/start/first-steps.md",
]


@pytest.mark.slow
def test_programs_of_the_pages_are_typed(tmp_path: Path) -> None:
    programs = 0
    for at, page in enumerate(PAGES):
        text = (ROOT / page).read_text(encoding="utf-8")
        for number, program in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            lines = program if "import evenmesh" in program else f"import evenmesh\n{program}"
            (tmp_path / f"page{at}_{number}.py").write_text(lines, encoding="utf-8")
            programs += 1
    assert programs >= 2 * len(PAGES)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir=cache", "."],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "clients" / "python")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
