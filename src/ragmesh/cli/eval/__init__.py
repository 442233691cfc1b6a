"""``ragmesh eval``: the science on files, without a mesh."""

import typer

from ragmesh.cli.eval.audits import exposure, utility
from ragmesh.cli.eval.conversations import conversation
from ragmesh.cli.eval.ensembles import inconsistency, vote


def evaluation() -> typer.Typer:
    """The commands of ``ragmesh eval``."""
    app = typer.Typer(
        name="eval",
        help="Measure rankings and answers in files, without a mesh.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (exposure, utility, conversation, vote, inconsistency):
        app.command()(command)
    return app
