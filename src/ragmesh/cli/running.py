"""A mesh run from the command line: attached to the terminal, or in the background."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from rich.text import Text

from meshkit.errors import MeshError
from ragmesh.addresses import Addresses
from ragmesh.aio import AsyncClient
from ragmesh.cli.corpus import told
from ragmesh.cli.failure import CommandError
from ragmesh.cli.progress import IngestDisplay, StartDisplay
from ragmesh.cli.screen import Screen
from ragmesh.mesh import Mesh, MeshSettings, MeshState, Phase, Progress, launch
from ragmesh.mesh.health import inner_services
from ragmesh.mesh.signals import StopSignals
from ragmesh.status import Health, ServiceStatus

DEMO = "demo"
"""The collection of the demo corpus."""


def run_detached(screen: Screen, settings: MeshSettings, *, demo: bool) -> None:
    """Starts the mesh in the background and says where it is.

    Raises:
        MeshStartError: it cannot start.
    """
    with StartDisplay(screen, _names(settings)) as display:
        state = launch(settings, display.observe)
    asyncio.run(_welcome(screen, state, demo=demo))
    screen.note("it runs in the background; stop it with: ragmesh down")


async def run_attached(screen: Screen, settings: MeshSettings, *, demo: bool) -> None:
    """Runs the mesh until Ctrl-C or ``ragmesh down``.

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
    """Starts a mesh that ends with ``stack``, and a signal that ends the stack's block.

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
    """Ingests the demo corpus unless the mesh has it.

    Raises:
        MeshError: the mesh does not take it.
    """
    from ragmesh.demo import passages

    async with AsyncClient(addresses) as client:
        if any(one.name == DEMO for one in await client.collections()):
            return
        corpus = passages()
        with IngestDisplay(screen, "the demo corpus", total=len(corpus)) as display:
            done = await client.ingest(corpus, DEMO, on_progress=display.sent)
    screen.note(told(done))


def show_services(screen: Screen, services: Sequence[ServiceStatus], running: MeshState | None) -> None:
    """One table of addresses and readiness."""
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
    """Tells what happens to the services of a running mesh, a line each."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def observe(self, step: Progress) -> None:
        """Takes one step of the mesh."""
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
            raise CommandError(f"the mesh is up, but does not take the demo corpus: {exc}") from exc


def _names(settings: MeshSettings) -> tuple[str, ...]:
    return tuple(service.name for service in settings.services)
