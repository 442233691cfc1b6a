"""Commands ``evenmesh up``, ``down``, ``status`` and ``console``."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from evenmesh.commands.failure import CommandError
from evenmesh.commands.screen import Screen

Home = Annotated[
    Path | None,
    typer.Option(
        "--home", metavar="DIR", help="Where everything lives. Default: EVENMESH_HOME, or your data folder."
    ),
]


def folder_of(home: Path | None) -> Path:
    """Return the folder that the option names, or the default one."""
    from evenmesh.home import home as default_home

    return home.expanduser().absolute() if home else default_home()


Generator = Annotated[
    Literal["in-process", "triton", "openai"],
    typer.Option(
        envvar="EVENMESH_GENERATOR_ENGINE",
        help="Where models run: in the generator's process, on a Triton server beside it, or on the "
        "OpenAI-compatible servers of EVENMESH_GENERATOR_REMOTE_URLS.",
    ),
]
Learn = Annotated[
    bool,
    typer.Option(
        "--learn", envvar="EVENMESH_LEARN", help="Also train the reranker on the feedback of each agent."
    ),
]
NoGateway = Annotated[
    bool, typer.Option("--no-gateway", envvar="EVENMESH_NO_GATEWAY", help="Do not serve HTTP beside gRPC.")
]


def up(
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Run in the background; `evenmesh down` stops it.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65_525, help="The orchestrator's port, the others follow; 0 picks free ones."
        ),
    ] = 7070,
    generator: Generator = "in-process",
    learn: Learn = False,
    no_gateway: NoGateway = False,
    no_demo: Annotated[bool, typer.Option("--no-demo", help="Do not ingest the demo corpus.")] = False,
    home: Home = None,
) -> None:
    """Start the services, and restart those that crash."""
    from evenmesh_mesh import GeneratorEngine, MeshSettings, services_with
    from evenmesh_mesh.commands.running import run_attached, run_detached
    from evenmesh_mesh.settings import overridden

    services = services_with(GeneratorEngine(generator), learn=learn, gateway=not no_gateway)
    settings = MeshSettings(folder_of(home), port=port, services=services)
    screen = Screen()
    if ignored := overridden(settings, os.environ):
        screen.note(
            f"{', '.join(ignored)}: without an effect here, as a mesh of one machine sets its own; run the "
            "services by themselves (docs/operate/containers.md) where they are to be others",
            style="yellow",
        )
    if detach:
        run_detached(screen, settings, demo=not no_demo)
    else:
        asyncio.run(run_attached(screen, settings, demo=not no_demo))


def down(home: Home = None) -> None:
    """Stop the mesh of this machine."""
    from evenmesh_mesh import stop

    screen = Screen()
    with screen.err.status("stopping the mesh"):
        stopped = stop(folder_of(home))
    screen.note("no mesh is running" if stopped is None else "the mesh is stopped", style="")


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    home: Home = None,
) -> None:
    """Show the address and the health of each service.

    Exit status 1 unless all of them serve.
    """
    from evenmesh import Client
    from evenmesh.addresses import Addresses
    from evenmesh.local_mesh import read_running
    from evenmesh.types.status import Health
    from evenmesh_mesh import certificates
    from evenmesh_mesh.health import inner_services

    screen = Screen()
    where = folder_of(home)
    running = read_running(where)
    for line in (*certificates.invalid(os.environ), *certificates.ending(os.environ)):
        screen.note(line, style="yellow")
    with Client(Addresses.find(where)) as client:
        found = client.status()
    if running is not None:
        found += asyncio.run(inner_services(running))
    serving = all(one.health is Health.SERVING for one in found)
    if as_json:
        services: list[dict[str, Any]] = []
        for one in found:
            process = running.services.get(one.service) if running is not None else None
            services.append(
                {
                    "service": one.service,
                    "address": one.address,
                    "health": one.health,
                    "pid": process.pid if process else None,
                    "restarts": process.restarts if process else None,
                }
            )
        screen.json(
            {
                "serving": serving,
                "home": str(where),
                "supervisor_pid": running.pid if running is not None else None,
                "services": services,
            }
        )
    elif running is None and all(one.health is Health.UNREACHABLE for one in found):
        raise CommandError("no mesh is running; start one with: evenmesh up")
    else:
        from evenmesh_mesh.commands.running import show_services

        show_services(screen, found, running)
    if not serving:
        raise typer.Exit(1)


def console(home: Home = None) -> None:
    """Print the address of the console, for a browser."""
    from evenmesh.local_mesh import read_running
    from evenmesh_mesh.health import console_url

    running = read_running(folder_of(home))
    if running is None:
        raise CommandError("no mesh is running; start one with: evenmesh up")
    url = console_url(running)
    if url is None:
        raise CommandError("this mesh serves no HTTP; start it without --no-gateway")
    Screen().line(url)
