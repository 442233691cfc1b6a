"""The command line of a service's process, which takes no arguments."""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
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
    texts = _texts(kind)
    for name, field in kind.model_fields.items():
        stated = field.default_factory is None and field.default not in (None, "", ())
        default = f" (default: {field.default})" if stated and not field.is_required() else ""
        named, indent = variable(kind, name), " " * 6
        text = textwrap.fill(texts.get(name, ""), 100, initial_indent=indent, subsequent_indent=indent)
        yield named, f"  {named}{default}\n{text}"


def _texts(kind: type[ServiceSettings]) -> dict[str, str]:
    """Return the text below each field, those of the bases included."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if not issubclass(one, ServiceSettings):
            continue
        try:
            [made] = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        except OSError:  # installed without its source
            continue
        body = made.body if isinstance(made, ast.ClassDef) else []
        for field, text in itertools.pairwise(body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[name] = " ".join(said.split())
    return found
