"""Command ``evenmesh doctor``: check whether a mesh can run here, and how."""

from typing import Annotated

import typer

from evenmesh.commands.screen import Screen
from evenmesh_mesh.commands.mesh import Generator, Home, Learn, NoGateway, folder_of


def doctor(
    port: Annotated[int, typer.Option(min=0, max=65_525, help="The orchestrator's port.")] = 7070,
    generator: Generator = "in-process",
    learn: Learn = False,
    no_gateway: NoGateway = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    home: Home = None,
) -> None:
    """Check what this machine can run, and how.

    Exit status 0 if `evenmesh up` can work here, 1 if not.
    """
    from rich.text import Text

    from evenmesh_mesh import GeneratorEngine, MeshSettings, services_with
    from evenmesh_mesh.doctor import Level, examine

    screen = Screen()
    services = services_with(GeneratorEngine(generator), learn=learn, gateway=not no_gateway)
    settings = MeshSettings(folder_of(home), port=port, services=services)
    with screen.err.status("looking at this machine"):
        findings = examine(settings)
    able = all(finding.level is not Level.FAIL for finding in findings)
    if as_json:
        screen.json({"able": able, "findings": findings})
    else:
        marks = {Level.OK: ("ok", "green"), Level.WARN: ("warn", "yellow"), Level.FAIL: ("fail", "bold red")}
        table = screen.table("", "what", "found")
        for finding in findings:
            mark, style = marks[finding.level]
            found = Text(finding.detail) + Text(f"\n{finding.advice}" if finding.advice else "", style=style)
            table.add_row(Text(mark, style=style), finding.what, found)
        screen.out.print(table)
        screen.line(
            "`evenmesh up` can work here" if able else "`evenmesh up` cannot work here yet", style="bold"
        )
    if not able:
        raise typer.Exit(1)
