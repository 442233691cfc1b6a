"""``ragmesh eval``: the science on files, without a mesh; and a mesh on a data set."""

import typer

from ragmesh.cli.eval.agents import agents
from ragmesh.cli.eval.audits import exposure, utility
from ragmesh.cli.eval.conversations import conversation
from ragmesh.cli.eval.ensembles import inconsistency, vote
from ragmesh.cli.eval.lamp import lamp
from ragmesh.cli.eval.rag import rag
from ragmesh.cli.group import group


def evaluation() -> typer.Typer:
    """The commands of ``ragmesh eval``."""
    app = group("eval", "Measure rankings and answers, of files or of a mesh.")
    for command in (exposure, utility, conversation, vote, inconsistency, rag, agents):
        app.command()(command)
    app.add_typer(lamp())
    return app
