"""The command line of a service's process, which takes no arguments."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Sequence

from evenmesh_kit.settings import ServiceSettings, variable


def refuse(module: str, *kinds: type[ServiceSettings], arguments: Sequence[str] | None = None) -> None:
    """Show the settings that a process reads, if it is asked for ``--help``; refuse every other argument.

    Args:
        module: what ``python -m`` runs.
        kinds: classes of its settings.
        arguments: of the command line; default: this process's.

    Raises:
        SystemExit: with 0 after the help, with 2 for another argument.
    """
    lines = {name: text for kind in kinds for name, text in _settings(kind)}
    argparse.ArgumentParser(
        prog=f"python -m {module}",
        description="Run this service until SIGTERM or SIGINT. Environment variables are its settings:",
        epilog="\n".join(lines.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    ).parse_args(arguments)


def _settings(kind: type[ServiceSettings]) -> Iterator[tuple[str, str]]:
    """Yield the variable of each setting, and the help on it."""
    for name, field in kind.model_fields.items():
        stated = field.default_factory is None and field.default not in (None, "", ())
        default = f" (default: {field.default})" if stated and not field.is_required() else ""
        named, indent = variable(kind, name), " " * 6
        text = textwrap.fill(field.description or "", 100, initial_indent=indent, subsequent_indent=indent)
        yield named, f"  {named}{default}\n{text}"
