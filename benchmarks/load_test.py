"""Test the embedded mesh under load, for docs/operate/bench-measured.md and capacity.md.

``python -m benchmarks.load_test`` starts a mesh on free ports with the demo corpus, ramps it to its knee,
sweeps its settings, and fills the measured parts of both pages and the figures in docs/operate/bench/. It
takes about an hour on an otherwise idle machine. ``--quick`` tries it out and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from evenmesh_studies.load.reporting.page import fill

DOCS = Path(__file__).resolve().parents[1] / "docs" / "operate"
RUNS = (
    ("ramp", ("ramp", "ask", "-N", "20", "--calls", "150")),
    (
        "rerank-generate",
        ("ramp", "rerank-generate", "-N", "20", "--calls", "60", "--concurrency", "1,2,4,8"),
    ),
    ("depth", ("sweep", "ask", "--vary", "N=20,50,100", "--vary", "k=1,5", "--calls", "30")),
    ("concurrency", ("sweep", "ask", "-N", "20", "--vary", "concurrency=1,2,4,8", "--calls", "50")),
    (
        "front",
        ("sweep", "ask", "-N", "20", "--vary", "alpha=none,1,2,4,8", "--samples", "8", "--calls", "30"),
    ),
)
"""Arguments of runs by name."""
_QUICK = ("--calls", "0", "--seconds", "6", "--warm-up", "2", "--longest", "6")


def main() -> None:
    """Measure, and fill the pages."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_test", description=__doc__)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(name for name, _ in RUNS)}")
    parser.add_argument("--out", type=Path, help="folder of the runs, where they resume. Default: a new one.")
    parser.add_argument("--quick", action="store_true", help="run short steps and write nothing")
    given = parser.parse_args()
    known = [name for name, _ in RUNS]
    if unknown := sorted(set(given.runs) - set(known)):
        parser.error(f"no such run: {', '.join(unknown)}; there are {', '.join(known)}")
    out = given.out or Path(tempfile.mkdtemp(prefix="evenmesh-load-test-"))
    chosen = [(name, words) for name, words in RUNS if name in (given.runs or known)]
    with tempfile.TemporaryDirectory(prefix="evenmesh-bench-") as home:
        environment = os.environ | {"EVENMESH_HOME": home}
        _evenmesh(environment, "up", "--detach", "--port", "0")
        try:
            for name, words in chosen:
                print(f"{name} …", flush=True)
                _evenmesh(
                    environment, "bench", *words, "--out", str(out / name), *(_QUICK if given.quick else ())
                )
        finally:
            _evenmesh(environment, "down")
    print(f"runs: {out}")
    if not given.quick:
        write(out, [name for name, _ in chosen])


def write(out: Path, names: Sequence[str]) -> None:
    """Fill the measured parts of the pages from the runs of a folder."""
    pictures = DOCS / "bench"
    pictures.mkdir(exist_ok=True)
    for name in names:
        for picture in sorted((out / name).glob("*.png")):
            shutil.copyfile(picture, pictures / f"{name}-{picture.name}")
        fill(DOCS / "bench-measured.md", name, section(out, name))
    if "ramp" in names:
        page = str(DOCS / "capacity.md")
        _evenmesh(os.environ, "bench", "capacity", str(out / "ramp"), "--page", page)


def section(out: Path, name: str) -> str:
    """Return a run's report as part of a page, with deeper headings and figures from docs/operate/bench/."""
    report = (out / name / "report.md").read_text(encoding="utf-8").split("\n", 1)[1]
    words = next(words for known, words in RUNS if known == name)
    deeper = re.sub(r"^## ", "### ", report, flags=re.MULTILINE)
    placed = re.sub(r"!\[([\w-]+)\]\(([\w-]+\.png)\)", rf"![\1](bench/{name}-\2)", deeper)
    return f"`evenmesh bench {' '.join(words)}`\n{placed}"


def _evenmesh(environment: os._Environ[str] | dict[str, str], *words: str) -> None:
    subprocess.run([sys.executable, "-m", "evenmesh", *words], env=environment, check=True)


if __name__ == "__main__":
    main()
