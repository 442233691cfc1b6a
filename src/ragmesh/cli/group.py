"""A command that is there for its subcommands."""

import sys

import typer


def group(name: str, text: str) -> typer.Typer:
    """A command that shows its help when it is called without a subcommand.

    Args:
        name: of the command.
        text: its help, one line.
    """
    app = typer.Typer(
        name=name, help=text, rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.callback(invoke_without_command=True)(start)
    return app


def start(context: typer.Context) -> None:
    """Shows the help where no subcommand was named."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
