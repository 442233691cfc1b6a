"""``ragmesh runs`` and ``ragmesh report``: what was shown and said so far."""

from typing import Annotated

import typer

from ragmesh.cli.screen import Screen


def runs(
    limit: Annotated[int, typer.Option(min=1, help="Newest runs to list.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the runs, newest first."""
    from ragmesh.cli.views import moment
    from ragmesh.client import Client

    screen = Screen()
    with Client() as mesh:
        found = mesh.runs(limit)
    if as_json:
        screen.json(found)
        return
    if not found:
        screen.line("No runs yet; every ask is filed under one.")
        return
    table = screen.table("run", "asks", "first", "latest", right=("asks",))
    for run in found:
        table.add_row(run.run_id, f"{run.num_observations:,}", moment(run.started_at), moment(run.updated_at))
    screen.out.print(table)


def report(
    run: Annotated[str | None, typer.Argument(help="The run. Default: the newest.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Report on a run: exposure, utility, times."""
    from ragmesh.cli.failure import CommandError
    from ragmesh.cli.views import show_run
    from ragmesh.client import Client

    screen = Screen()
    with Client() as mesh:
        if run is None:
            newest = mesh.runs(1)
            if not newest:
                raise CommandError("there are no runs yet; every ask is filed under one")
            run = newest[0].run_id
        found = mesh.report(run)
    if as_json:
        screen.json(found)
    else:
        show_run(screen, found)
