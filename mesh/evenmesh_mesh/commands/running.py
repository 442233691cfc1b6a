"""Run a mesh from the command line: in the foreground, or in the background."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from rich.text import Text

from evenmesh import AsyncClient
from evenmesh.addresses import Addresses
from evenmesh.commands.ingest import ingest_summary
from evenmesh.commands.progress import ingest_display
from evenmesh.commands.screen import Screen
from evenmesh.local_mesh import MeshState
from evenmesh.types.status import Health, ServiceStatus
from evenmesh.wire.errors import MeshError
from evenmesh_mesh import Mesh, MeshSettings, Phase, Progress, launch
from evenmesh_mesh.commands.progress import StartDisplay
from evenmesh_mesh.health import console_url, inner_services
from evenmesh_mesh.signals import StopSignals

DEMO = "demo"
"""The collection of the demo corpus."""


def run_detached(screen: Screen, settings: MeshSettings, *, demo: bool) -> None:
    """Start the mesh in the background and print its addresses.

    Raises:
        MeshStartError: it cannot start.
    """
    with StartDisplay(screen, _names(settings)) as display:
        state = launch(settings, display.observe)
    asyncio.run(_welcome(screen, state, demo=demo))
    screen.note("it runs in the background; stop it with: evenmesh down")


async def run_attached(screen: Screen, settings: MeshSettings, *, demo: bool) -> None:
    """Run the mesh until Ctrl-C or ``evenmesh down``.

    Raises:
        MeshStartError: it cannot start.
    """
    async with AsyncExitStack() as stack:
        mesh = await started(screen, settings, stack)
        await _welcome(screen, mesh.state, demo=demo)
        screen.note("Ctrl-C stops it")
        await mesh.watch()
    screen.note("the mesh is stopped", style="")


async def started(screen: Screen, settings: MeshSettings, stack: AsyncExitStack) -> Mesh:
    """Start a mesh that stops with ``stack``; a signal ends the block of the stack.

    Raises:
        MeshStartError: it cannot start.
    """
    display = StartDisplay(screen, _names(settings))
    announce = Announcer(screen)
    mesh = Mesh(settings, lambda step: (announce if mesh.state.ready else display).observe(step))
    stack.enter_context(StopSignals(mesh.kill))
    with display:
        await stack.enter_async_context(mesh)
    return mesh


async def ensure_demo(screen: Screen, addresses: Addresses) -> None:
    """Ingest the demo corpus unless the mesh has it.

    Raises:
        MeshError: the mesh refuses it.
    """
    from evenmesh_studies.demo import passages

    async with AsyncClient(addresses) as client:
        if any(one.name == DEMO for one in await client.collections()):
            return
        corpus = passages()
        with ingest_display(screen, "the demo corpus", len(corpus)) as display:
            done = await client.ingest(corpus, DEMO, on_progress=display.update)
    screen.note(ingest_summary(done))


def show_services(screen: Screen, services: Sequence[ServiceStatus], running: MeshState | None) -> None:
    """Print a table of addresses and health."""
    table = screen.table("service", "address", "health", "pid", "restarts", right=("pid", "restarts"))
    styles = {Health.SERVING: "green", Health.NOT_SERVING: "yellow", Health.UNREACHABLE: "red"}
    for one in services:
        process = running.services.get(one.service) if running is not None else None
        table.add_row(
            one.service,
            one.address,
            Text(one.health.value, style=styles[one.health]),
            str(process.pid) if process is not None and process.pid is not None else "–",
            str(process.restarts) if process is not None else "–",
        )
    screen.out.print(table)


class Announcer:
    """Prints a line for each event of a service of a running mesh."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def observe(self, step: Progress) -> None:
        """Show one step of the mesh."""
        match step.phase:
            case Phase.CRASHED:
                self._screen.note(f"{step.service} {step.detail}", style="yellow")
            case Phase.SERVING:
                self._screen.note(f"{step.service} serves again", style="green")
            case _:
                pass


async def _welcome(screen: Screen, state: MeshState, *, demo: bool) -> None:
    addresses = Addresses(**state.addresses)
    async with AsyncClient(addresses) as client:
        show_services(screen, [*await client.status(), *await inner_services(state)], state)
    if demo:
        try:
            await ensure_demo(screen, addresses)
        except MeshError as exc:
            screen.note(
                f"the mesh is up, without the demo corpus: {exc}; set EVENMESH_API_KEY to a key that may "
                "write, or start with --no-demo",
                style="yellow",
            )
    if url := console_url(state):
        screen.note(f"see who is shown in a browser: {url}")


def _names(settings: MeshSettings) -> tuple[str, ...]:
    return tuple(service.name for service in settings.services)
