"""The command line of a study: its help is the module's docstring as it stands."""

from __future__ import annotations

import argparse


def parser(program: str, about: str | None) -> argparse.ArgumentParser:
    """Return a parser of ``python -m benchmarks.PROGRAM``."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{program}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
