"""``evenmesh eval``: measure files without a mesh, or a mesh on a data set."""

import typer

from evenmesh.commands.group import group
from evenmesh_studies.commands.eval.agents import agents
from evenmesh_studies.commands.eval.audits import exposure, utility
from evenmesh_studies.commands.eval.conversations import conversation
from evenmesh_studies.commands.eval.ensembles import inconsistency, vote
from evenmesh_studies.commands.eval.export import export
from evenmesh_studies.commands.eval.lamp import lamp
from evenmesh_studies.commands.eval.rag import rag


def evaluation() -> typer.Typer:
    """Return the commands of ``evenmesh eval``."""
    app = group(
        "eval",
        "Measure rankings and answers, of files or of a mesh.",
        exposure,
        utility,
        conversation,
        vote,
        inconsistency,
        rag,
        agents,
    )
    app.add_typer(lamp())
    app.add_typer(export())
    return app
