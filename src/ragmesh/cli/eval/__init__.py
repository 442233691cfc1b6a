"""``ragmesh eval``: the science on files, without a mesh; and a mesh on a data set."""

import sys

import typer

from ragmesh.cli.eval.agents import agents
from ragmesh.cli.eval.audits import exposure, utility
from ragmesh.cli.eval.conversations import conversation
from ragmesh.cli.eval.ensembles import inconsistency, vote
from ragmesh.cli.eval.lamp import lamp
from ragmesh.cli.eval.rag import rag


def evaluation() -> typer.Typer:
    """The commands of ``ragmesh eval``."""
    app = typer.Typer(
        name="eval",
        help="Measure rankings and answers, of files or of a mesh.",
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_start)
    for command in (exposure, utility, conversation, vote, inconsistency, rag, agents):
        app.command()(command)
    app.add_typer(lamp())
    return app


def _start(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")
