"""``ragmesh eval``: the science on files, without a mesh."""

import sys

import typer

from ragmesh.cli.eval.audits import exposure, utility
from ragmesh.cli.eval.conversations import conversation
from ragmesh.cli.eval.ensembles import inconsistency, vote


def evaluation() -> typer.Typer:
    """The commands of ``ragmesh eval``."""
    app = typer.Typer(
        name="eval",
        help="Measure rankings and answers in files, without a mesh.",
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_start)
    for command in (exposure, utility, conversation, vote, inconsistency):
        app.command()(command)
    return app


def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
