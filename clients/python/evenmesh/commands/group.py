"""Make commands that consist of subcommands."""

import sys
from collections.abc import Callable

import typer


def group(name: str, text: str, *commands: Callable[..., object]) -> typer.Typer:
    """Return a command that shows its help when it is called without a subcommand.

    Args:
        name: name of the command.
        text: its help, one line.
        commands: its subcommands, each by its name without a final underscore.
    """
    app = typer.Typer(
        name=name, help=text, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.callback(invoke_without_command=True)(start)
    for command in commands:
        app.command(command.__name__.rstrip("_"))(command)
    return app


def start(context: typer.Context) -> None:
    """Show the help if no subcommand was named."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
