"""Draw docs/assets/demo.svg from a real run of the demo: ``python docs/site/picture.py``."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parents[1] / "assets" / "demo.svg"
WIDTH = 112


def main() -> None:
    """Run the demo in a home of its own and write what it prints from the first question on."""
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {
            "COLUMNS": str(WIDTH),
            "EVENMESH_HOME": home,
            "FORCE_COLOR": "1",
            "TERM": "xterm-256color",
        }
        command = [sys.executable, "-m", "evenmesh", "demo"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 - our own command
    start = re.search(r"^.*\$ .*evenmesh ask", done.stdout, re.MULTILINE)
    if start is None:
        raise SystemExit(f"the demo asked nothing:\n{done.stdout}")
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    console.print(Text.from_ansi(done.stdout[start.start() :].rstrip()))
    drawn = console.export_svg(title="make demo", unique_id="demo")
    # The picture loads no web font: browsers take their own monospaced one.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
