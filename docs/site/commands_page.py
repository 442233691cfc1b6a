"""The page of commands, from the command line itself."""

from __future__ import annotations

import re
from typing import Any

import typer

from evenmesh.commands import application

INTRODUCTION = """# Commands

`evenmesh COMMAND --help` prints the same as this page. The distribution `evenmesh` has the commands of a
client, `evenmesh-mesh` those that run a mesh, `evenmesh-studies` the studies, and `evenmesh-training` the
trainings. `evenmesh-documents` makes `ingest` read documents, too.

This page is generated from the command line.
"""


def page() -> str:
    """Return every command with its arguments and options as Markdown."""
    root: Any = typer.main.get_command(application())
    lines = [INTRODUCTION]
    for name, command in root.commands.items():
        if not command.hidden:
            lines += _command(("evenmesh", name), command, 2)
    return "\n".join(lines) + "\n"


def _command(path: tuple[str, ...], command: Any, level: int) -> list[str]:
    lines = ["", f"{'#' * level} {' '.join(path)}", "", _text(command.help or ""), ""]
    if hasattr(command, "commands"):
        for name, one in command.commands.items():
            if not one.hidden:
                lines += _command((*path, name), one, min(level + 1, 4))
        return lines
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    arguments = [one for one in shown if one.param_type_name == "argument"]
    options = [one for one in shown if one.param_type_name == "option"]
    words = [one.metavar or one.name.upper() for one in arguments]
    lines += ["```sh", " ".join([*path, *words, "[OPTIONS]" if options else ""]).strip(), "```", ""]
    if arguments or options:
        lines += ["| | default | |", "|---|---|---|"]
        for one, word in zip(arguments, words, strict=True):
            lines.append(f"| `{_bar(word)}` | {_default(one)} | {_cell(getattr(one, 'help', '') or '')} |")
        for one in options:
            names = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
            lines.append(f"| {names} | {_default(one)} | {_cell(one.help or '')} |")
    return lines


def _default(one: Any) -> str:
    if one.required:
        return "required"
    value = one.default
    if value in (None, False, (), [], "") or callable(value) or "Sentinel" in type(value).__name__:
        return ""
    if value is True:
        return "on"
    return ", ".join(f"`{part}`" for part in value) if isinstance(value, list | tuple) else f"`{value}`"


def _text(text: str) -> str:
    return re.sub(r"\s*\[/?[a-z ]+\]", "", text).replace("\b", "").strip()


def _bar(text: str) -> str:
    return text.replace("|", "\\|")


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", re.sub(r"``(.+?)``", r"`\1`", " ".join(text.split())))
